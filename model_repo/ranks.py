"""The models of a repository whose engines have several ranks: what they need before a start."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmc import artifacts
from llmc.errors import BuildError, CheckpointError, LlmcError, ServeError
from llmc.mapping import Mapping
from llmc.model_repo.launchers import Launcher, hostfile_slots
from llmc.model_repo.mpi import needs_oversubscription
from llmc.model_repo.pbtxt import CONFIG_FILE, read_config
from llmc.model_repo.server import LeaderRanks

TENSORRT_LLM = "tensorrt-llm"
"""What an engine runs on that is not of llmc's targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedModel:
    """One model with an engine; `target` is what the engine runs on.

    `participant_ids`: MPI ranks that somebody else starts, of TensorRT-LLM's backend.
    """

    model: str
    engine_dir: Path
    mapping: Mapping
    target: str
    launch_mode: str
    timeout_seconds: float
    participant_ids: str = ""

    @property
    def world_size(self) -> int:
        return self.mapping.world_size


def find_ranked_models(repository: Path) -> list[RankedModel]:
    """Return every model that holds an engine, as the configurations say.

    Raises: CheckpointError for an engine that is not there or does not say how it is split.
    """
    found = []
    for file in sorted(repository.glob(f"*/{CONFIG_FILE}")):
        try:
            parameters = read_config(file).parameters
        except BuildError:  # lint's to report
            continue
        path = parameters["gpt_model_path"].string_value
        if not path:
            continue
        engine_dir = (repository / path).resolve()
        mapping, target = _read_engine(engine_dir)
        found.append(
            RankedModel(
                model=file.parent.name,
                engine_dir=engine_dir,
                mapping=mapping,
                target=target,
                launch_mode=parameters["launch_mode"].string_value or _launch_mode(repository),
                timeout_seconds=float(parameters["rank_timeout_s"].string_value or 30),
                participant_ids=parameters["participant_ids"].string_value,
            )
        )
    return found


def _launch_mode(repository: Path) -> str:
    """Return what the recipe said, for models whose configuration has no place for it."""
    try:
        return str(artifacts.read_manifest(repository).recipe.get("launch_mode", "leader"))
    except CheckpointError:  # nobody's stage: a repository made by hand
        return "leader"


def _read_engine(engine_dir: Path) -> tuple[Mapping, str]:
    file = engine_dir / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        mapping = Mapping.from_json(config["pretrained_config"]["mapping"])
        return mapping, config["llmc"]["target"] if "llmc" in config else TENSORRT_LLM
    except LlmcError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file}: {error!r}; expected an engine's mapping and target"
        ) from error


def require_ready(
    models: list[RankedModel], *, hostfile: Path | None, num_gpus: int, leader: bool
) -> None:
    """Look at everything a job of several ranks needs, before anything is started.

    Raises: ServeError with a line for each thing that is wrong.
    """
    reasons = []
    for model in models:
        reasons += [f"{model.model}: {reason}" for reason in _file_reasons(model)]
        if model.participant_ids:
            reasons.append(
                f"{model.model}: participant_ids {model.participant_ids}: ranks that the model does"
                " not start; run NVIDIA's launch_triton_server.py --multi-model"
                " --disable-spawn-processes"
            )
        if hostfile is None and model.target != "cpu":
            reasons += _gpu_reasons(model, num_gpus)
        if hostfile is not None and leader:
            slots = hostfile_slots(hostfile.read_text(encoding="utf-8"))
            if slots < model.world_size:
                reasons.append(
                    f"{model.model}: {hostfile} has slots for {slots} ranks, the engine has"
                    f" {model.world_size}"
                )
    if reasons:
        raise ServeError("\n  - ".join(["the ranks cannot be started", *reasons]))


def _file_reasons(model: RankedModel) -> Iterator[str]:
    try:
        files = artifacts.read_manifest(model.engine_dir).files
    except CheckpointError:  # an engine from elsewhere; its ranks look at their files themselves
        files = {}
    for rank in range(model.world_size):
        found = sorted(model.engine_dir.glob(f"rank{rank}.*"))
        if not found:
            yield (
                f"rank {rank}: {model.engine_dir}/rank{rank}.engine is missing, the mapping has"
                f" {model.world_size} ranks"
            )
        for path in found:
            size, entry = path.stat().st_size, files.get(path.name)
            if files and (entry is None or entry.size_bytes != size):
                yield f"rank {rank}: {path}: {size} bytes, not the file of this build's manifest"


def _gpu_reasons(model: RankedModel, num_gpus: int) -> Iterator[str]:
    needed = min(model.world_size, model.mapping.gpus_per_node)
    if num_gpus < needed:
        yield f"{model.model}: {num_gpus} GPUs here, its {model.world_size} ranks need {needed}"


def choose_leader(models: list[RankedModel]) -> RankedModel | None:
    """Return the model whose ranks are servers, if any; one MPI job has one world.

    Raises: ServeError when there are several.
    """
    leaders = [m for m in models if m.world_size > 1 and m.launch_mode == "leader"]
    if len(leaders) > 1:
        names = ", ".join(model.model for model in leaders)
        raise ServeError(
            f"{names}: one server job has the ranks of one model",
            hint="build them with serve.launch_mode orchestrator",
        )
    return leaders[0] if leaders else None


def leader_ranks(model: RankedModel, launcher: Launcher, hostfile: Path | None) -> LeaderRanks:
    """Return how the servers of a leader's ranks are started."""
    return LeaderRanks(
        launcher=launcher,
        model=model.model,
        world_size=model.world_size,
        # The launcher is started elsewhere.
        hostfile=None if hostfile is None else hostfile.resolve(),
        oversubscribe=hostfile is None and needs_oversubscription(model.world_size),
    )
