"""From a Hugging Face directory to a TensorRT-LLM checkpoint, in one streaming pass.

Memory does not grow with the model: each worker holds one piece of a few MiB. Every value is looked
at on its way. What NVIDIA's converter writes but its loader does not need (embed_positions*,
rotary_inv_freq) is left out. W8A16 is written in its portable form: plain weights and the name of
the format.
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from llmc.builders.hf.config import read_json
from llmc.builders.hf.preflight import HfModel, examine
from llmc.builders.slicing import Slice, copy_slice, slices
from llmc.checkpoint import (
    CheckpointConfig,
    Quantization,
    file_mapping,
    tensor_schema,
    tensor_specs,
    unsplittable,
)
from llmc.dtypes import WEIGHT_DTYPES
from llmc.errors import BuildError, CheckpointError, UnsupportedError
from llmc.log import Progress
from llmc.mapping import Mapping
from llmc.quant import FORMATS
from llmc.weights import SafetensorsWriter

log = logging.getLogger(__name__)

COPIED_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
)
"""What is copied beside the checkpoint, where the model has it."""

_MAX_REASONS = 20


def preflight(
    model_dir: Path,
    *,
    dtype: str | None,
    mapping: Mapping,
    quantization: Quantization,
    use_parallel_embedding: bool = False,
    embedding_sharding_dim: int = 0,
) -> list[str]:
    """Return every reason why `convert` with the same arguments would refuse.

    Headers are read, weights are not (but for two tensors that must be equal): what only the values
    can show, NaN and overflow, is found while converting.
    """
    with ExitStack() as stack:
        model, reasons = examine(model_dir)
        if model is not None:
            stack.callback(model.weights.close)
            config = _configure(
                model, dtype, mapping, quantization, use_parallel_embedding, embedding_sharding_dim
            )
            reasons += _choice_reasons(config)
        return reasons


def convert(
    model_dir: Path,
    output_dir: Path,
    *,
    dtype: str | None,
    mapping: Mapping,
    quantization: Quantization,
    use_parallel_embedding: bool = False,
    embedding_sharding_dim: int = 0,
    progress: Progress,
    workers: int,
) -> CheckpointConfig:
    """Write the checkpoint of `model_dir` into the existing, empty `output_dir`.

    `dtype` None keeps the model's. `workers` threads work on tensors of all rank files at once;
    each takes about 48 MiB. On any failure every file written here is removed again.
    Raises: CheckpointError when the model is at fault, UnsupportedError when the choices are,
    BuildError when the disk is too small.
    """
    assert output_dir.is_dir() and workers > 0, (output_dir, workers)
    with ExitStack() as stack:
        model, reasons = examine(model_dir)
        if model is not None:
            stack.callback(model.weights.close)
        if model is None or reasons:
            raise CheckpointError(_listed(f"{model_dir}: cannot be converted", reasons))
        config = _configure(
            model, dtype, mapping, quantization, use_parallel_embedding, embedding_sharding_dim
        )
        reasons = _choice_reasons(config)
        if reasons:
            raise UnsupportedError(f"{model_dir}: cannot be converted this way", reasons)
        if dtype is None:
            log.info("dtype: %s, as the model was saved", config.dtype)
        with _removing_on_failure(output_dir):
            _write_rank_files(model, config, output_dir, progress, workers)
            _write_beside(model_dir, model, output_dir)
            text = json.dumps(config.to_json(), indent=4)
            (output_dir / "config.json").write_text(text + "\n", encoding="utf-8")
    return config


def _configure(
    model: HfModel,
    dtype: str | None,
    mapping: Mapping,
    quantization: Quantization,
    use_parallel_embedding: bool,
    embedding_sharding_dim: int,
) -> CheckpointConfig:
    return CheckpointConfig(
        arch=model.arch,
        dtype=dtype or model.dtype,
        mapping=mapping,
        quantization=quantization,
        use_parallel_embedding=use_parallel_embedding,
        embedding_sharding_dim=embedding_sharding_dim,
    )


def _choice_reasons(config: CheckpointConfig) -> list[str]:
    """Return what stands in the way of the chosen dtype, mapping and quantization."""
    reasons = unsplittable(config)
    if config.dtype not in WEIGHT_DTYPES:
        reasons.append(f"dtype {config.dtype!r}, expected one of {', '.join(WEIGHT_DTYPES)}")
    if config.embedding_sharding_dim not in (0, 1):
        reasons.append(f"embedding_sharding_dim {config.embedding_sharding_dim}, expected 0 or 1")
    quantization = config.quantization
    algo, kv_algo = quantization.quant_algo, quantization.kv_cache_quant_algo
    if algo is not None and algo not in FORMATS:
        reasons.append(f"quant_algo {algo!r}, expected one of {', '.join(FORMATS)}")
    if kv_algo is not None:
        reasons.append(
            f"kv_cache_quant_algo {kv_algo!r}, expected none: a quantized KV cache needs scaling"
            " factors from calibration, which this version does not do"
        )
    if not reasons:
        _warn_of_idle_patterns(config)
    return reasons


def _warn_of_idle_patterns(config: CheckpointConfig) -> None:
    whole = replace(config, mapping=Mapping())
    modules = {spec.name.rpartition(".")[0] for spec in tensor_specs(whole, 0)}
    for pattern in config.quantization.exclude_modules or ():
        if not any(fnmatchcase(module, pattern) for module in modules):
            log.warning("exclude_modules: %r matches no module of this model", pattern)


def _listed(message: str, reasons: list[str]) -> str:
    shown = reasons[:_MAX_REASONS]
    if len(reasons) > len(shown):
        shown.append(f"and {len(reasons) - len(shown)} more")
    return "\n  - ".join([message, *shown])


@contextmanager
def _removing_on_failure(directory: Path) -> Iterator[None]:
    """Remove what the block wrote into `directory` when it fails."""
    before = set(directory.iterdir())
    try:
        yield
    except BaseException:
        for path in set(directory.iterdir()) - before:
            path.unlink()
        raise


def _write_rank_files(
    model: HfModel, config: CheckpointConfig, output_dir: Path, progress: Progress, workers: int
) -> None:
    schemas = [list(tensor_schema(config, rank).values()) for rank in range(config.num_rank_files)]
    total_bytes = sum(info.num_bytes for schema in schemas for info in schema)
    free_bytes = shutil.disk_usage(output_dir).free
    if free_bytes < total_bytes:
        free, needed = free_bytes / 2**30, total_bytes / 2**30
        raise BuildError(f"{output_dir}: {free:.1f} GiB free, expected {needed:.1f} GiB")
    lock = Lock()

    def advance(amount: int) -> None:
        with lock:
            progress.advance(amount)

    progress.start("checkpoint", total_bytes)
    try:
        with ExitStack() as stack:
            writers = [
                stack.enter_context(
                    SafetensorsWriter(
                        output_dir / f"rank{rank}.safetensors", schema, {"format": "pt"}
                    )
                )
                for rank, schema in enumerate(schemas)
            ]
            _run_all(_tasks(model, config, writers, advance), workers)
    finally:
        progress.finish()
    log.info("wrote %d rank files, %.1f GiB", len(schemas), total_bytes / 2**30)


def _tasks(
    model: HfModel,
    config: CheckpointConfig,
    writers: list[SafetensorsWriter],
    advance: Callable[[int], None],
) -> Iterator[Callable[[], None]]:
    """Yield one task per tensor and rank; ranks of one tensor together, while it is cached."""
    tp_size, pp_size = config.mapping.tp_size, config.mapping.pp_size
    for stage in range(pp_size):
        first = stage * tp_size
        layers = file_mapping(config.mapping, first).stage_layers(config.arch.num_hidden_layers)
        for spec in tensor_specs(config, first):
            names = model.sources[spec.name]
            sources = [(name, model.weights.infos[name].shape[0]) for name in names]
            for tp_rank in range(tp_size):
                parts = list(slices(spec, sources, tp_rank=tp_rank, tp_size=tp_size))
                writer, name = writers[first + tp_rank], spec.local_name(layers.start)
                yield partial(_copy_tensor, parts, model, writer, name, advance)


def _copy_tensor(
    parts: list[Slice],
    model: HfModel,
    writer: SafetensorsWriter,
    name: str,
    advance: Callable[[int], None],
) -> None:
    for part in parts:
        copy_slice(part, model.weights, writer, name, advance)


def _run_all(tasks: Iterator[Callable[[], None]], workers: int) -> None:
    """Run the tasks on threads; the first failure cancels what has not begun and is raised."""
    with ThreadPoolExecutor(max_workers=workers) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def _write_beside(model_dir: Path, model: HfModel, output_dir: Path) -> None:
    """Copy tokenizer and generation settings; make up the latter from config.json where absent."""
    for name in COPIED_FILES:
        if (model_dir / name).is_file():
            shutil.copyfile(model_dir / name, output_dir / name)
    target = output_dir / "generation_config.json"
    if not target.exists() and model.config.token_ids:
        log.info("generation_config.json: absent, token ids taken from config.json")
        target.write_text(json.dumps(model.config.token_ids, indent=2) + "\n", encoding="utf-8")
    tokenizer = output_dir / "tokenizer.json"
    if not tokenizer.exists():
        log.warning("%s: no tokenizer.json; an engine built from this cannot read text", model_dir)
    elif (largest := _largest_token_id(read_json(tokenizer))) >= model.arch.vocab_size:
        # Not refused: fine-tuned models often name a padding token they never use.
        log.warning(
            "%s: names token id %d, but vocab_size is %d: the model does not know that token",
            *(model_dir / "tokenizer.json", largest, model.arch.vocab_size),
        )


def _largest_token_id(tokenizer: dict[str, Any]) -> int:
    """Return the largest id in a tokenizer.json of the tokenizers library."""
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else range(len(vocabulary))
    return max([*ids, *(token["id"] for token in tokenizer.get("added_tokens", ()))], default=-1)
