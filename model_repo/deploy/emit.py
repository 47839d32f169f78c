"""Write the files of a deployment into one directory, and find out what is to be deployed."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llmc.errors import CheckpointError
from llmc.lookup import load
from llmc.mapping import Mapping
from llmc.model_repo.deploy import KINDS
from llmc.model_repo.deploy.deployment import Deployment
from llmc.model_repo.ranks import find_ranked_models
from llmc.recipes.schema import Recipe
from llmc.stages import StageResult, run_stage, tool_version


def emit_deployment(deployment: Deployment, kinds: Sequence[str], output: Path) -> StageResult:
    """Write the files of `kinds` into `output`, which only an earlier deployment may occupy.

    Raises: RecipeError for settings that do not fit, UnsupportedError for an unknown kind,
    BuildError when `output` is somebody else's.
    """
    deployment.require_valid()
    writers = [load(KINDS, kind, package=__package__, kind="deployment") for kind in kinds]

    def write(staging: Path) -> None:
        for writer in writers:
            for name, text in writer.write(deployment).items():
                path = staging / name
                path.write_text(text, encoding="utf-8")
                path.chmod(0o755 if text.startswith("#!") else 0o644)

    settings = json.loads(json.dumps(asdict(deployment) | {"kinds": kinds}, default=str))
    return run_stage(
        output,
        write,
        stage="deployment",
        inputs={},
        recipe=settings,
        tools={"llmc": tool_version("model_repo")},
    )


def read_repository(repository: Path) -> dict[str, Any]:
    """Return the fields of a Deployment that a model repository decides.

    Raises: CheckpointError when it has not exactly one engine.
    """
    models = find_ranked_models(repository)
    if len(models) != 1:
        raise CheckpointError(f"{repository}: {len(models)} models with an engine, expected one")
    (model,) = models
    return _fields(model.model, model.mapping, model.launch_mode, model.target)


def read_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return the fields of a Deployment that a recipe decides."""
    split = recipe.mapping
    mapping = Mapping(
        tp_size=split.tp, pp_size=split.pp, moe_tp_size=split.moe_tp, moe_ep_size=split.moe_ep
    )
    return _fields("tensorrt_llm", mapping, recipe.serve.launch_mode, recipe.target.kind)


def _fields(model: str, mapping: Mapping, launch_mode: str, target: str) -> dict[str, Any]:
    return {
        "model": model,
        "mapping": mapping,
        "launch_mode": launch_mode,
        "uses_gpus": target != "cpu",
    }
