"""Write a Triton model repository for an engine directory; serving it is server.py's part."""

import logging
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

from llmc.errors import CheckpointError, UnsupportedError
from llmc.model_repo import MODELS
from llmc.model_repo.configs import CONFIGS, Deployed, backend_parameters
from llmc.model_repo.engine_config import Engine, read_engine
from llmc.model_repo.lint import lint_repository
from llmc.model_repo.options import RepositoryOptions
from llmc.model_repo.pbtxt import CONFIG_FILE, write_config
from llmc.model_repo.queues import queue_reasons
from llmc.model_repo.specs import ModelSpec

log = logging.getLogger(__name__)

MODEL_FILES = Path(__file__).parent / "models"
"""`<model>/1/model.py` of every model that runs code, as Triton lays them out."""

TEMPLATE_SINCE, TEMPLATE_UNTIL = (0, 20), (1, 2)
"""Versions of TensorRT-LLM whose backend has every text tensor of the emitted models."""


def emit_repository(
    engine_dir: Path, output: Path, options: RepositoryOptions, *, tokenizer_dir: Path | None = None
) -> None:
    """Write the five models into the existing directory `output`, parsed back and linted.

    llmc's engines are served by its own executor, others by TensorRT-LLM's backend. `output` may
    be a staging sibling of the final directory: unless the options say where the server finds
    engine and tokenizer, those are stored relative to the repository, so that the tree that holds
    all can be renamed and moved. Only the engine of TensorRT-LLM's backend is stored as an absolute
    path: it resolves others against the server's working directory.

    `tokenizer_dir` None: the engine directory has the tokenizer.

    Raises: CheckpointError when `engine_dir` is no engine directory or there is no tokenizer,
    UnsupportedError when the options do not fit the engine, BuildError when lint finds a mistake.
    """
    engine = read_engine(engine_dir)
    tokenizer_dir = tokenizer_dir or engine_dir
    _check(engine, tokenizer_dir, options)
    deployed = Deployed(
        engine=engine,
        engine_path=options.engine_dir or _engine_path(engine, output),
        tokenizer_path=options.tokenizer_dir
        or (options.engine_dir if tokenizer_dir == engine_dir else None)
        or _relative(tokenizer_dir, output),
        own_tensors=engine.is_ours if options.llmc_tensors is None else options.llmc_tensors,
    )
    specs = [config(options, deployed) for config in CONFIGS]
    assert tuple(spec.name for spec in specs) == MODELS
    for spec in specs:
        _write_model(spec, output / spec.name)
    lint_repository(output, elsewhere=options.engine_dir is not None, engine=engine)


def _engine_path(engine: Engine, output: Path) -> str:
    absolute = str(engine.directory.resolve())
    return _relative(engine.directory, output) if engine.is_ours else absolute


def _relative(directory: Path, output: Path) -> str:
    return os.path.relpath(directory.resolve(), output.resolve())


def _check(engine: Engine, tokenizer_dir: Path, options: RepositoryOptions) -> None:
    if not isinstance(engine.build.get("max_batch_size"), int) or (
        "logits_dtype" not in engine.pretrained
    ):
        raise CheckpointError(
            f"{engine.directory}/config.json: expected build_config.max_batch_size and"
            " pretrained_config.logits_dtype"
        )
    if not engine.is_ours and not (tokenizer_dir / "tokenizer.json").is_file():
        raise CheckpointError(
            f"{tokenizer_dir}: no tokenizer.json",
            hint="--tokenizer names a directory that has it",
        )
    reasons = [*_reasons(engine, options), *queue_reasons(options)]
    if reasons:
        raise UnsupportedError(f"{engine.directory}: cannot be served as the recipe says", reasons)
    if engine.is_ours and (unused := backend_parameters(options)):
        log.warning("serve.tensorrt_llm: not for llmc's own executor: %s", ", ".join(unused))


def _reasons(engine: Engine, options: RepositoryOptions) -> Iterator[str]:
    """Yield what the options ask for and the models for this engine do not do."""
    limit = engine.build["max_batch_size"]
    if options.max_batch_size is not None and options.max_batch_size > limit:
        yield f"max_batch_size: {options.max_batch_size} is more than the engine's {limit}"
    if options.decoupled and options.postprocessing_instance_count > 1:
        yield (
            f"postprocessing_instance_count: {options.postprocessing_instance_count} with decoupled"
            " true: instances would overtake each other and scramble streamed text, expected 1"
        )
    if not engine.is_ours:
        yield from _backend_reasons(engine, options)


def _backend_reasons(engine: Engine, options: RepositoryOptions) -> Iterator[str]:
    """Yield what TensorRT-LLM's backend minds.

    Source: tensorrtllm_backend at c2e65b88, docs/llama_multi_instance.md.
    """
    version = engine.version
    if not (version and TEMPLATE_SINCE <= version <= TEMPLATE_UNTIL):
        yield (
            f"an engine of TensorRT-LLM {engine.version_text or 'no version'}, expected one of 0.20"
            " to 1.2"
        )
    if options.llmc_tensors:
        yield "llmc_tensors: True, but TensorRT-LLM's backend does not have them"
    sets = options.tensorrt_llm.get("gpu_device_ids")
    instances = len(sets) if isinstance(sets, tuple) else 1
    if instances > 1 and engine.world_size != 1 and options.launch_mode == "leader":
        yield (
            f"launch_mode: leader, but gpu_device_ids has GPUs for {instances} instances of"
            f" {engine.world_size} ranks each: orchestrator, or a server for each instance"
        )


def _write_model(spec: ModelSpec, directory: Path) -> None:
    """Write config.pbtxt and the version folder, which without code has a file to survive git."""
    version = directory / "1"
    version.mkdir(parents=True)
    if spec.steps or spec.backend != "python":
        (version / ".keep").touch()
    else:
        shutil.copyfile(MODEL_FILES / spec.name / "1" / "model.py", version / "model.py")
    if spec.warmup is not None:
        (directory / "warmup").mkdir()
        for name, values in spec.warmup.inputs.items():
            data = struct.pack(f"<{len(values)}i", *values)
            (directory / "warmup" / name).write_bytes(data)
    write_config(spec, directory / CONFIG_FILE)
