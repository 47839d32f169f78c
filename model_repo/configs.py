"""One configuration per model, from the options and the engine.

They are NVIDIA's templates filled in. What llmc adds: the tensors marked `own` in signatures.py,
with serve.llmc_tensors, and the parameters of its own executor.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from llmc.model_repo import signatures
from llmc.model_repo.engine_config import Engine
from llmc.model_repo.options import RepositoryOptions
from llmc.model_repo.queues import batch_by_priority, batch_only
from llmc.model_repo.specs import DynamicBatching, EnsembleStep, ModelSpec, TensorSpec, Warmup
from llmc.model_repo.template import fill_template

WARMUP_MAX_TOKENS = 2
"""Tokens a warm-up request asks for: a prompt's step and a step after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What is served, and where the server finds it.

    `own_tensors`: the models have llmc's own tensors, too.
    """

    engine: Engine
    engine_path: str
    tokenizer_path: str
    own_tensors: bool

    @property
    def max_batch_size(self) -> int:
        return int(self.engine.build["max_batch_size"])

    def select(self, tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Leave out what the models shall not have; give logits their type."""
        logits = {"float32": "FP32", "float16": "FP16", "bfloat16": "BF16"}
        dtype = logits[self.engine.pretrained["logits_dtype"]]
        return tuple(
            replace(tensor, dtype=dtype) if tensor.name in signatures.LOGITS else tensor
            for tensor in tensors
            if self.own_tensors or not tensor.own
        )


def preprocessing(options: RepositoryOptions, deployed: Deployed) -> ModelSpec:
    """Text to token ids."""
    return ModelSpec(
        name="preprocessing",
        max_batch_size=_max_batch_size(options, deployed),
        inputs=deployed.select(signatures.PREPROCESSING_INPUTS),
        outputs=deployed.select(signatures.PREPROCESSING_OUTPUTS),
        instance_count=options.preprocessing_instance_count,
        dynamic_batching=batch_only(options, _max_batch_size(options, deployed)),
        parameters=fill_template(
            "preprocessing",
            {
                "tokenizer_dir": deployed.tokenizer_path,
                "add_special_tokens": options.add_special_tokens,
            },
        ),
    )


def tensorrt_llm(options: RepositoryOptions, deployed: Deployed) -> ModelSpec:
    """Token ids to token ids: the executor of TensorRT-LLM or, with text as well, llmc's own."""
    ours = deployed.engine.is_ours
    given = {
        "gpt_model_type": options.tensorrt_llm["batching_strategy"],
        "gpt_model_path": deployed.engine_path,
        "tokenizer_dir": deployed.tokenizer_path,
        "max_beam_width": 1,
        "max_tokens_in_paged_kv_cache": options.max_tokens_in_paged_kv_cache,
        "kv_cache_free_gpu_mem_fraction": options.kv_cache_free_gpu_mem_fraction,
        "batch_scheduler_policy": options.batch_scheduler_policy,
        "enable_chunked_context": options.enable_chunked_context,
        "enable_kv_cache_reuse": options.enable_kv_cache_reuse,
        "exclude_input_in_output": options.exclude_input_in_output,
        "cancellation_check_period_ms": options.cancellation_check_period_ms,
        "stats_check_period_ms": options.stats_check_period_ms,
    }
    if ours:
        given |= {
            "skip_special_tokens": options.skip_special_tokens,
            "launch_mode": options.launch_mode,
            "rank_timeout_s": options.rank_timeout_s,
            "max_rank_restarts": options.max_rank_restarts,
        }
    else:
        given |= backend_parameters(options)
    device_ids = given.get("gpu_device_ids")
    return ModelSpec(
        name="tensorrt_llm",
        backend="python" if ours else "tensorrtllm",
        max_batch_size=_max_batch_size(options, deployed),
        inputs=deployed.select(signatures.TENSORRT_LLM_INPUTS),
        outputs=deployed.select(signatures.TENSORRT_LLM_OUTPUTS),
        instance_count=len(device_ids) if isinstance(device_ids, tuple) else 1,
        decoupled=options.decoupled,
        dynamic_batching=batch_by_priority(options, _max_batch_size(options, deployed)),
        parameters=fill_template("tensorrt_llm", given),
        warmup=_warmup(options),
    )


def backend_parameters(options: RepositoryOptions) -> dict[str, object]:
    """Return what is given for TensorRT-LLM's backend alone, by the parameter's name."""
    values = {name: value for name, value in options.tensorrt_llm.items() if value is not None}
    del values["batching_strategy"]
    return values


def _warmup(options: RepositoryOptions) -> Warmup | None:
    if options.warmup_prompt_tokens is None:
        return None
    return Warmup(
        name="prompt",
        batch_size=options.warmup_requests,
        inputs={
            # Any token will do, and every vocabulary has the first ones.
            "input_ids": (1,) * options.warmup_prompt_tokens,
            "input_lengths": (options.warmup_prompt_tokens,),
            "request_output_len": (WARMUP_MAX_TOKENS,),
        },
    )


def postprocessing(options: RepositoryOptions, deployed: Deployed) -> ModelSpec:
    """Token ids to text, in the order they come.

    One instance: several would overtake each other and scramble a stream. With llmc's tensors no
    dynamic batching either: the batcher would swallow the cancelled requests by which this model
    learns that a client of the ensemble is gone.
    """
    given: dict[str, object] = {
        "tokenizer_dir": deployed.tokenizer_path,
        "skip_special_tokens": options.skip_special_tokens,
    }
    if deployed.own_tensors:
        given["tensorrt_llm_model_name"] = "tensorrt_llm"
    return ModelSpec(
        name="postprocessing",
        max_batch_size=_max_batch_size(options, deployed),
        inputs=deployed.select(signatures.POSTPROCESSING_INPUTS),
        outputs=deployed.select(signatures.POSTPROCESSING_OUTPUTS),
        instance_count=options.postprocessing_instance_count,
        dynamic_batching=None if deployed.own_tensors else DynamicBatching(),
        parameters=fill_template("postprocessing", given),
    )


def ensemble(options: RepositoryOptions, deployed: Deployed) -> ModelSpec:
    """The three above in a row, text to text."""
    own = {
        tensor.name
        for tensors in signatures.ALL
        for tensor in tensors
        if tensor.own and not deployed.own_tensors
    }
    internal = {
        name: signatures.INTERNAL_NAMES.get(name, f"_{name}")
        for name in signatures.TENSORRT_LLM_FROM_PREPROCESSING.values()
    }
    from_preprocessing = {
        name: internal[source]
        for name, source in signatures.TENSORRT_LLM_FROM_PREPROCESSING.items()
    }
    from_tensorrt_llm = {
        name: source
        for name, source in signatures.POSTPROCESSING_FROM_TENSORRT_LLM.items()
        if name not in own
    }
    return ModelSpec(
        name="ensemble",
        max_batch_size=_max_batch_size(options, deployed),
        inputs=deployed.select(signatures.ENSEMBLE_INPUTS),
        outputs=deployed.select(signatures.TEXT_OUTPUTS),
        steps=(
            EnsembleStep(
                model="preprocessing",
                inputs=_without(own, signatures.PREPROCESSING_FROM_TEXT),
                outputs=internal,
            ),
            EnsembleStep(
                model="tensorrt_llm",
                inputs=from_preprocessing | _without(own, signatures.TENSORRT_LLM_FROM_TEXT),
                outputs={
                    **{source: f"_{name}" for name, source in from_tensorrt_llm.items()},
                    **{name: name for name in signatures.PASSED_THROUGH if name not in own},
                },
            ),
            EnsembleStep(
                model="postprocessing",
                inputs={name: f"_{name}" for name in from_tensorrt_llm},
                outputs={"OUTPUT": "text_output"},
            ),
        ),
    )


def tensorrt_llm_bls(options: RepositoryOptions, deployed: Deployed) -> ModelSpec:
    """The same row, called from Python: for clients that are written for it."""
    given: dict[str, object] = {
        "accumulate_tokens": options.accumulate_tokens,
        "tensorrt_llm_model_name": "tensorrt_llm",
    }
    if deployed.own_tensors:
        given["cancellation_check_period_ms"] = options.cancellation_check_period_ms
    return ModelSpec(
        name="tensorrt_llm_bls",
        max_batch_size=_max_batch_size(options, deployed),
        inputs=deployed.select(signatures.TENSORRT_LLM_BLS_INPUTS),
        outputs=deployed.select(signatures.TEXT_OUTPUTS),
        instance_count=options.bls_instance_count,
        decoupled=options.decoupled,
        parameters=fill_template("tensorrt_llm_bls", given),
    )


CONFIGS: tuple[Callable[[RepositoryOptions, Deployed], ModelSpec], ...] = (
    preprocessing,
    tensorrt_llm,
    postprocessing,
    ensemble,
    tensorrt_llm_bls,
)


def _max_batch_size(options: RepositoryOptions, deployed: Deployed) -> int:
    return options.max_batch_size or deployed.max_batch_size


def _without(names: set[str], sources: dict[str, str]) -> dict[str, str]:
    return {name: source for name, source in sources.items() if name not in names}
