"""Compare a model with the engine it names: ranks, limits, and what the engine was not built for.

Source: NVIDIA TensorRT-LLM 0.17 to 1.2, commands/build.py; tensorrtllm_backend
docs/model_config.md for what needs what.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmc.errors import CheckpointError
from llmc.model_repo.engine_config import Engine, read_engine
from llmc.model_repo.lint_parameters import values_of
from llmc.model_repo.parameters import BOOLEANS


def find_engine(config: Any, repository: Path) -> tuple[Engine | None, str | None]:
    """Read the engine a model names. The second is what is wrong with it; without one both None."""
    path = values_of(config).get("gpt_model_path")
    directory = repository / path if path else None
    if directory is None or not directory.is_dir():
        return None, None
    try:
        return read_engine(directory), None
    except CheckpointError as error:
        return None, f"parameters.gpt_model_path: {error.message}"


def check_engine(config: Any, engine: Engine) -> Iterator[str]:
    """Yield what the engine cannot do of what the model's configuration asks for."""
    values = values_of(config)
    yield from _check_backend(config, engine)
    yield from _check_ranks(values, engine)
    yield from _check_limits(config, values, engine)
    yield from _check_features(values, engine)


def _check_backend(config: Any, engine: Engine) -> Iterator[str]:
    if engine.is_ours and config.backend == "tensorrtllm":
        yield f"backend: tensorrtllm, but {engine.directory.name} is an engine of llmc's own target"


def _check_ranks(values: dict[str, str], engine: Engine) -> Iterator[str]:
    world_size = engine.world_size
    if world_size is None:
        return
    missing = [
        rank for rank in range(world_size) if not any(engine.directory.glob(f"rank{rank}.*engine"))
    ]
    if missing:
        ranks = ", ".join(map(str, missing))
        yield f"parameters.gpt_model_path: no engine file of rank {ranks}, of {world_size} ranks"
    for key in ("gpu_device_ids", "participant_ids"):
        for group in values.get(key, "").split(";"):
            if group and len(group.split(",")) != world_size:
                yield f"parameters.{key}: {group}, but the engine has {world_size} ranks"


def _check_limits(config: Any, values: dict[str, str], engine: Engine) -> Iterator[str]:
    limit = engine.build.get("max_batch_size")
    if isinstance(limit, int) and config.max_batch_size > limit:
        yield f"max_batch_size: {config.max_batch_size}, but the engine takes {limit}"
    beams = engine.build.get("max_beam_width", 1)
    wanted = values.get("max_beam_width", "1")
    if wanted.isdecimal() and isinstance(beams, int) and int(wanted) > beams:
        yield f"parameters.max_beam_width: {wanted}, but the engine was built for {beams}"
    dtype = str(engine.pretrained.get("logits_dtype"))
    expected = {"float32": "TYPE_FP32", "float16": "TYPE_FP16", "bfloat16": "TYPE_BF16"}.get(dtype)
    for tensor in config.output:
        field = tensor.DESCRIPTOR.fields_by_name["data_type"]
        found = field.enum_type.values_by_number[tensor.data_type].name
        if tensor.name in ("context_logits", "generation_logits") and expected not in (None, found):
            yield f"output: {tensor.name!r} is {found}, the engine's logits are {expected}"


_DRAFTING = {"medusa": "MEDUSA", "lookahead": "LOOKAHEAD_DECODING", "eagle": "EAGLE"}


def _check_features(values: dict[str, str], engine: Engine) -> Iterator[str]:
    paged_fmha = engine.plugins.get("use_paged_context_fmha")
    kv_algo = (engine.pretrained.get("quantization") or {}).get("kv_cache_quant_algo")
    for key in ("enable_chunked_context", "enable_kv_cache_reuse"):
        if not BOOLEANS.get(values.get(key, "")) or engine.is_ours:
            continue
        if paged_fmha is False:
            yield f"parameters.{key}: true needs an engine built with use_paged_context_fmha"
        elif kv_algo == "INT8":
            yield f"parameters.{key}: true, but not with an INT8 KV cache"
    share = values.get("gpu_weights_percent", "1")
    if share not in ("1", "1.0") and engine.build.get("weight_streaming") is False:
        yield f"parameters.gpu_weights_percent: {share} needs an engine built with weight_streaming"
    mode = values.get("decoding_mode", "")
    built = str(engine.build.get("speculative_decoding_mode", "")).upper()
    if mode in _DRAFTING and built and _DRAFTING[mode] not in built and not built.isdecimal():
        yield f"parameters.decoding_mode: {mode}, but the engine was built for {built}"
