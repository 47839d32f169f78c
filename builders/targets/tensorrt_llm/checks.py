"""What trtllm-build refuses, or changes without a word, as one-line checks made before any work.

Source: NVIDIA/TensorRT-LLM tensorrt_llm/builder.py, plugin/plugin.py (validate), commands/build.py,
models/modeling_utils.py and cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention.cu (head
sizes), 0.17 and 1.x.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llmc.builders.targets import BuildLimits
from llmc.builders.targets.tensorrt_llm.build_options import PLUGIN_OPTIONS
from llmc.checkpoint import CheckpointConfig
from llmc.plugins.tensorrt_llm_options import Value
from llmc.recipes.tensorrt_llm import TensorrtLlmTarget

HEAD_SIZES = (32, 48, 64, 80, 96, 104, 112, 128, 144, 160, 192, 224, 256)
"""What the generation kernel of gpt_attention_plugin is compiled for."""

_FUSED_REDUCE = {"LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A build that is asked for, on GPUs of `capability`."""

    config: CheckpointConfig
    limits: BuildLimits
    target: TensorrtLlmTarget
    capability: int

    def asked(self, name: str) -> Value:
        """Return the recipe's value of a plugin option, None when it says nothing."""
        return self.limits.kernel_choices.get(name)

    def on(self, name: str) -> bool:
        """Say whether a plugin option is on: as asked, else as it is by default."""
        value = self.asked(name)
        if value is None:
            value = PLUGIN_OPTIONS[name].default
        return value not in (None, False, "none")

    @property
    def algos(self) -> frozenset[str]:
        """The quant_algo of every module that is quantized."""
        return algos_of(self.config)

    @property
    def kv_algo(self) -> str | None:
        return self.config.quantization.kv_cache_quant_algo

    @property
    def architecture(self) -> str:
        return self.config.arch.architecture


def algos_of(config: CheckpointConfig) -> frozenset[str]:
    """Return every quant_algo in use, those of single modules where they differ."""
    quantization = config.quantization
    layers = {layer.quant_algo for layer in quantization.quantized_layers.values()}
    return frozenset(algo for algo in layers or {quantization.quant_algo} if algo)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`wrong` says whether a build fails it; `text` why, without the field's name."""

    field: str
    wrong: Callable[[Question], bool]
    text: str


def _check(field: str, wrong: Callable[[Question], bool], text: str) -> Check:
    return Check(field=field, wrong=wrong, text=text)


_PLUGINS = "build.plugins"


def _has_lora(target: TensorrtLlmTarget) -> bool:
    return bool(target.lora_target_modules or target.lora_dir)


def _needs_fused_mlp(name: str) -> Check:
    return _check(
        f"{_PLUGINS}.{name}",
        lambda q: q.on(name) and not q.on("use_fused_mlp"),
        "on, and needs use_fused_mlp",
    )


CHECKS: tuple[Check, ...] = (
    _check(
        "build.max_num_tokens",
        lambda q: q.limits.max_num_tokens > q.limits.max_seq_len * q.limits.max_batch_size,
        "more than max_seq_len * max_batch_size, to which trtllm-build lowers it",
    ),
    _check(
        "build.max_num_tokens",
        lambda q: q.limits.max_num_tokens < q.limits.max_batch_size * q.target.max_beam_width,
        "less than max_batch_size * max_beam_width: each beam takes a token of a step",
    ),
    _check(
        f"{_PLUGINS}.gpt_attention_plugin",
        lambda q: not q.on("gpt_attention_plugin"),
        "off, and the paged KV cache and in-flight batching need it",
    ),
    _check(
        f"{_PLUGINS}.gpt_attention_plugin",
        lambda q: q.config.arch.head_size not in HEAD_SIZES and q.config.arch.mla is None,
        f"no kernel for the model's head_size; there are {', '.join(map(str, HEAD_SIZES))}",
    ),
    _check(
        f"{_PLUGINS}.remove_input_padding",
        lambda q: not q.on("remove_input_padding"),
        "off, and in-flight batching needs it",
    ),
    _check(
        f"{_PLUGINS}.use_paged_context_fmha",
        lambda q: q.asked("use_paged_context_fmha") is True and not q.on("context_fmha"),
        "on, and context_fmha is off",
    ),
    _check(
        f"{_PLUGINS}.use_paged_context_fmha",
        lambda q: q.asked("use_paged_context_fmha") is True and q.kv_algo == "INT8",
        "on, and a KV cache of INT8 turns it off: no KV reuse, no chunked context",
    ),
    _check(
        f"{_PLUGINS}.use_fp8_context_fmha",
        lambda q: (
            q.asked("use_fp8_context_fmha") is True
            and q.on("use_paged_context_fmha")
            and q.kv_algo != "FP8"
        ),
        "on with use_paged_context_fmha, and the KV cache is not FP8",
    ),
    _check(
        f"{_PLUGINS}.context_fmha",
        lambda q: q.asked("context_fmha") is True and q.config.dtype == "float32",
        "on, and there is no fused attention in float32",
    ),
    _check(
        f"{_PLUGINS}.gemm_plugin",
        lambda q: (
            q.asked("gemm_plugin") in ("float16", "bfloat16", "float32")
            and q.asked("gemm_plugin") != q.config.dtype
        ),
        "another dtype than the checkpoint's",
    ),
    *(_needs_fused_mlp(name) for name in ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin")),
    _check(
        f"{_PLUGINS}.nccl_plugin",
        lambda q: not q.on("nccl_plugin") and q.config.num_rank_files > 1,
        "off, and there are several ranks",
    ),
    _check(
        f"{_PLUGINS}.moe_plugin",
        lambda q: not q.on("moe_plugin") and (q.config.mapping.moe_ep_size or 1) > 1,
        "off, and experts are split over ranks",
    ),
    _check(
        f"{_PLUGINS}.reduce_fusion",
        lambda q: (
            q.on("reduce_fusion")
            and (q.config.mapping.tp_size == 1 or q.architecture not in _FUSED_REDUCE)
        ),
        f"on, and is for tp above 1 and {', '.join(sorted(_FUSED_REDUCE))}",
    ),
    _check(
        f"{_PLUGINS}.user_buffer",
        lambda q: q.on("user_buffer") and not q.on("reduce_fusion"),
        "on, and needs reduce_fusion",
    ),
    _check(
        f"{_PLUGINS}.user_buffer",
        lambda q: q.on("user_buffer") and q.architecture != "LlamaForCausalLM",
        "on, and is for LlamaForCausalLM alone",
    ),
    _check(
        f"{_PLUGINS}.norm_quant_fusion",
        lambda q: q.on("norm_quant_fusion") and q.architecture != "LlamaForCausalLM",
        "on, and is for LlamaForCausalLM alone",
    ),
    _check(
        f"{_PLUGINS}.norm_quant_fusion",
        lambda q: q.on("norm_quant_fusion") and q.on("reduce_fusion"),
        "on, and reduce_fusion turns it off",
    ),
    _check(
        f"{_PLUGINS}.streamingllm",
        lambda q: q.on("streamingllm") and q.architecture != "LlamaForCausalLM",
        "on, and is for LlamaForCausalLM alone",
    ),
    _check(
        f"{_PLUGINS}.streamingllm",
        lambda q: q.on("streamingllm") and q.target.version not in ("0.21", "1.0"),
        "on, and is refused from 1.1 on; versions that have it: 0.21, 1.0",
    ),
    _check(
        f"{_PLUGINS}.streamingllm",
        lambda q: q.on("streamingllm") and q.asked("use_paged_context_fmha") is True,
        "on, and turns use_paged_context_fmha off",
    ),
    _check(
        f"{_PLUGINS}.pp_reduce_scatter",
        lambda q: q.on("pp_reduce_scatter") and q.architecture != "MixtralForCausalLM",
        "on, and is for MixtralForCausalLM alone",
    ),
    _check(
        f"{_PLUGINS}.multiple_profiles",
        lambda q: q.on("multiple_profiles") and q.target.opt_num_tokens is not None,
        "on, and target.opt_num_tokens is for one profile",
    ),
    _check(
        f"{_PLUGINS}.lora_plugin",
        lambda q: q.on("lora_plugin") and not _has_lora(q.target),
        "on, and neither target.lora_target_modules nor target.lora_dir says for which modules",
    ),
    _check(
        f"{_PLUGINS}.lora_plugin",
        lambda q: not q.on("lora_plugin") and _has_lora(q.target),
        "off, and the target names adapters or modules for them",
    ),
    _check(
        f"{_PLUGINS}.dora_plugin",
        lambda q: q.on("dora_plugin") and not q.on("lora_plugin"),
        "on, and needs lora_plugin",
    ),
    _check(
        "target.workers",
        lambda q: q.target.workers > q.config.num_rank_files,
        "more than there are ranks",
    ),
)
"""Every check, in the order of the options."""


def check_reasons(question: Question) -> list[str]:
    """Return the line of every check that the build fails."""
    reasons = [f"{check.field}: {check.text}" for check in CHECKS if check.wrong(question)]
    return [*reasons, *_option_reasons(question)]


def _option_reasons(question: Question) -> list[str]:
    """Return what the ops' own tables say of the options that are asked for."""
    reasons = []
    for name, value in question.limits.kernel_choices.items():
        option = PLUGIN_OPTIONS[name]
        if value in (False, "none"):
            continue
        said = "on" if value is True else value
        needed = option.needs.get(value, ())
        if needed and not question.algos & {*needed}:
            weights = f"not {needed[0]}" if len(needed) == 1 else f"none of {', '.join(needed)}"
            reasons.append(f"{_PLUGINS}.{name}: {said}, and the weights are {weights}")
        if not option.runs_on(question.capability):
            reasons.append(
                f"{_PLUGINS}.{name}: {said}, which compute capability {question.capability} does"
                f" not have; it works {option.where()}"
            )
    return reasons
