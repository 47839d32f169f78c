"""One configuration per model, from the options and the engine's limits.

Source of parameter names: triton-inference-server/tensorrtllm_backend at c2e65b88,
docs/model_config.md. Paths are relative to the repository; the models resolve them against where
they were loaded from.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmc.errors import CheckpointError
from llmc.model_repo import signatures
from llmc.model_repo.options import RepositoryOptions
from llmc.model_repo.specs import DynamicBatching, EnsembleStep, ModelSpec, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What a repository must know of an engine directory; `path` is relative to the repository."""

    path: str
    max_batch_size: int
    logits_dtype: str


def read_engine_facts(engine_dir: Path, path: str) -> EngineFacts:
    """Read an engine's config.json. Raises: CheckpointError when it is none."""
    file = engine_dir / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        max_batch_size = config["build_config"]["max_batch_size"]
        logits_dtype = config["pretrained_config"]["logits_dtype"]
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{file}: not found, expected an engine directory",
            hint="llmc build MODEL -o OUT writes OUT/engine",
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file}: {error!r}; expected an engine's pretrained_config and build_config"
        ) from error
    return EngineFacts(path=path, max_batch_size=max_batch_size, logits_dtype=logits_dtype)


def preprocessing(options: RepositoryOptions, engine: EngineFacts) -> ModelSpec:
    """Text to token ids."""
    return ModelSpec(
        name="preprocessing",
        max_batch_size=_max_batch_size(options, engine),
        inputs=signatures.PREPROCESSING_INPUTS,
        outputs=signatures.PREPROCESSING_OUTPUTS,
        instance_count=options.preprocessing_instance_count,
        dynamic_batching=_batching(options, engine),
        parameters={
            "tokenizer_dir": engine.path,
            "add_special_tokens": _flag(options.add_special_tokens),
        },
    )


def tensorrt_llm(options: RepositoryOptions, engine: EngineFacts) -> ModelSpec:
    """Token ids to token ids and text, by the executor: one instance, which holds the model."""
    limit = options.max_tokens_in_paged_kv_cache
    return ModelSpec(
        name="tensorrt_llm",
        max_batch_size=_max_batch_size(options, engine),
        inputs=signatures.TENSORRT_LLM_INPUTS,
        outputs=_with_logits_dtype(signatures.TENSORRT_LLM_OUTPUTS, engine),
        instance_count=1,
        decoupled=options.decoupled,
        dynamic_batching=_batching(options, engine, priority_levels=options.priority_levels),
        parameters={
            "gpt_model_type": "inflight_fused_batching",
            "gpt_model_path": engine.path,
            "tokenizer_dir": engine.path,
            "max_beam_width": "1",
            "max_tokens_in_paged_kv_cache": "" if limit is None else str(limit),
            "kv_cache_free_gpu_mem_fraction": str(options.kv_cache_free_gpu_mem_fraction),
            "batch_scheduler_policy": options.batch_scheduler_policy,
            "enable_chunked_context": _flag(options.enable_chunked_context),
            "enable_kv_cache_reuse": _flag(options.enable_kv_cache_reuse),
            "exclude_input_in_output": _flag(options.exclude_input_in_output),
            "skip_special_tokens": _flag(options.skip_special_tokens),
            "cancellation_check_period_ms": str(options.cancellation_check_period_ms),
            "stats_check_period_ms": str(options.stats_check_period_ms),
            "launch_mode": options.launch_mode,
            "rank_timeout_s": str(options.rank_timeout_s),
            "max_rank_restarts": str(options.max_rank_restarts),
        },
    )


def postprocessing(options: RepositoryOptions, engine: EngineFacts) -> ModelSpec:
    """Token ids to text, in the order they come.

    One instance and no dynamic batching: instances would overtake each other and scramble a
    stream, and the batcher would swallow the cancelled requests by which this model learns that a
    client of the ensemble is gone.
    """
    return ModelSpec(
        name="postprocessing",
        max_batch_size=_max_batch_size(options, engine),
        inputs=signatures.POSTPROCESSING_INPUTS,
        outputs=signatures.POSTPROCESSING_OUTPUTS,
        instance_count=options.postprocessing_instance_count,
        parameters={
            "tokenizer_dir": engine.path,
            "skip_special_tokens": _flag(options.skip_special_tokens),
            "tensorrt_llm_model_name": "tensorrt_llm",
        },
    )


def ensemble(options: RepositoryOptions, engine: EngineFacts) -> ModelSpec:
    """The three above in a row, text to text."""
    from_preprocessing = signatures.TENSORRT_LLM_FROM_PREPROCESSING
    from_tensorrt_llm = signatures.POSTPROCESSING_FROM_TENSORRT_LLM
    return ModelSpec(
        name="ensemble",
        max_batch_size=_max_batch_size(options, engine),
        inputs=signatures.ENSEMBLE_INPUTS,
        outputs=_with_logits_dtype(signatures.TEXT_OUTPUTS, engine),
        steps=(
            EnsembleStep(
                model="preprocessing",
                inputs=signatures.PREPROCESSING_FROM_TEXT,
                outputs={name: f"_{name}" for name in from_preprocessing.values()},
            ),
            EnsembleStep(
                model="tensorrt_llm",
                inputs={
                    **{name: f"_{source}" for name, source in from_preprocessing.items()},
                    **signatures.TENSORRT_LLM_FROM_TEXT,
                },
                outputs={
                    **{source: f"_{name}" for name, source in from_tensorrt_llm.items()},
                    **{name: name for name in signatures.PASSED_THROUGH},
                },
            ),
            EnsembleStep(
                model="postprocessing",
                inputs={name: f"_{name}" for name in from_tensorrt_llm},
                outputs={"OUTPUT": "text_output"},
            ),
        ),
    )


def tensorrt_llm_bls(options: RepositoryOptions, engine: EngineFacts) -> ModelSpec:
    """The same row, called from Python: for clients that are written for it."""
    return ModelSpec(
        name="tensorrt_llm_bls",
        max_batch_size=_max_batch_size(options, engine),
        inputs=signatures.TENSORRT_LLM_BLS_INPUTS,
        outputs=_with_logits_dtype(signatures.TEXT_OUTPUTS, engine),
        instance_count=options.bls_instance_count,
        decoupled=options.decoupled,
        parameters={
            "tensorrt_llm_model_name": "tensorrt_llm",
            "cancellation_check_period_ms": str(options.cancellation_check_period_ms),
        },
    )


CONFIGS: tuple[Callable[[RepositoryOptions, EngineFacts], ModelSpec], ...] = (
    preprocessing,
    tensorrt_llm,
    postprocessing,
    ensemble,
    tensorrt_llm_bls,
)


def _max_batch_size(options: RepositoryOptions, engine: EngineFacts) -> int:
    return options.max_batch_size or engine.max_batch_size


def _batching(
    options: RepositoryOptions, engine: EngineFacts, *, priority_levels: int = 0
) -> DynamicBatching:
    return DynamicBatching(
        preferred_batch_size=_max_batch_size(options, engine),
        max_queue_delay_microseconds=options.max_queue_delay_microseconds,
        max_queue_size=options.max_queue_size,
        priority_levels=priority_levels,
    )


def _with_logits_dtype(
    tensors: tuple[TensorSpec, ...], engine: EngineFacts
) -> tuple[TensorSpec, ...]:
    dtype = {"float32": "FP32", "float16": "FP16", "bfloat16": "BF16"}[engine.logits_dtype]
    return tuple(
        TensorSpec(name=tensor.name, dtype=dtype, dims=tensor.dims)
        if tensor.name in ("context_logits", "generation_logits")
        else tensor
        for tensor in tensors
    )


def _flag(value: Any) -> str:
    return "true" if value else "false"
