"""Flags of TensorRT-LLM's tools and the recipe fields that say the same.

A flag without a field is here too, with the reason: none is dropped in silence.

Source: NVIDIA TensorRT-LLM 0.17.0.dev2024121700, examples/llama/convert_checkpoint.py,
examples/quantization/quantize.py, tensorrt_llm/commands/build.py and plugin/plugin.py; the plugin
fields up to 1.2; tensorrtllm_backend v0.19.0, tools/fill_template.py and docs/model_config.md.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import yaml

Takes = Literal["none", "one", "maybe", "many"]
"""How many values follow a flag; maybe: none or one."""

NOT_SAID = object()
"""A value that leaves the recipe's field at its default."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag. Either `field`, or a `note` that says why there is none.

    `values` translates spellings; others are read by `read`. A flag that takes nothing sets
    `value`.
    """

    names: tuple[str, ...]
    field: str | None = None
    note: str = ""
    takes: Takes = "one"
    value: Any = True
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    read: Callable[[str], Any] = yaml.safe_load


def _read_ids(text: str) -> Any:
    """Read 0,1;2,3: a list for each instance. What is no list is left for the schema to refuse."""
    parts = (part.split(",") for part in text.split(";"))
    return [[yaml.safe_load(number) for number in part] for part in parts]


def _read_tree(text: str) -> Any:
    """Read {0, 0}, {0, 1}: a list for each path."""
    return [[int(number) for number in re.findall(r"\d+", path)] for path in text.split("}")[:-1]]


def _read_sizes(text: str) -> Any:
    return [yaml.safe_load(number) for number in text.split(",")]


def _same(field: str, *names: str, **values: Any) -> Flag:
    return Flag(names=names, field=field, values=values)


def _none(note: str, *names: str, takes: Takes = "one") -> tuple[Flag, ...]:
    return tuple(Flag(names=(name,), note=note, takes=takes) for name in names)


def _switch(field: str, name: str, value: Any = True, note: str = "") -> Flag:
    return Flag(names=(name,), field=field, takes="none", value=value, note=note)


_UNSET: dict[str, Any] = {"-1": NOT_SAID}
_DTYPE = Flag(names=("--dtype",), field="dtype", values={"auto": NOT_SAID})
_CP = _none("llmc does not split contexts", "--cp_size")
_READ = "read from the checkpoint's config.json"
_OUTPUT = "`llmc build --output`"
_LOG = "`llmc --log-level`"
_WORKERS = "`llmc build --workers`"
_NO_SPECULATION = "llmc has no draft models"
_ALGO = "quantization.algo"

CONVERT_CHECKPOINT: tuple[Flag, ...] = (
    _same("model", "--model_dir"),
    *_none("convert Meta's checkpoint to Hugging Face's first", "--meta_ckpt_dir"),
    _same("mapping.tp", "--tp_size"),
    _same("mapping.pp", "--pp_size"),
    Flag(names=("--moe_tp_size",), field="mapping.moe_tp", values=_UNSET),
    Flag(names=("--moe_ep_size",), field="mapping.moe_ep", values=_UNSET),
    *_CP,
    _DTYPE,
    *_none(_READ, "--vocab_size", "--n_positions", "--n_layer", "--n_head", "--n_kv_head"),
    *_none(_READ, "--n_embd", "--inter_size", "--multiple_of", "--ffn_dim_multiplier"),
    *_none(_READ, "--rms_norm_eps", "--hidden_act", "--rotary_base"),
    *_none(_READ, "--moe_num_experts", "--moe_top_k", "--moe_renorm_mode"),
    _switch(_ALGO, "--use_weight_only", "W8A16", "W8A16 unless --weight_only_precision says more"),
    Flag(
        names=("--weight_only_precision",),
        field=_ALGO,
        takes="maybe",
        values={
            "int8": "W8A16",
            "int4": "W4A16",
            "int4_gptq": "W4A16_GPTQ",
            "int4_awq": "W4A16_AWQ",
        },
        note="with --use_weight_only only",
    ),
    *_none("the target chooses its kernels", "--disable_weight_only_quant_plugin", takes="none"),
    Flag(
        names=("--smoothquant", "-sq"),
        field="quantization.alpha",
        note="also sets quantization.algo, by --per_channel and --per_token",
    ),
    *_none("quantization.algo W8A8_SQ_…, with --smoothquant", "--per_channel", takes="none"),
    *_none("quantization.algo W8A8_SQ_…, with --smoothquant", "--per_token", takes="none"),
    *_none("QServe's formats are not llmc's", "--use_qserve", "--per_group", takes="none"),
    _switch("quantization.kv_cache", "--int8_kv_cache", "INT8"),
    _switch("quantization.kv_cache", "--fp8_kv_cache", "FP8"),
    _switch(_ALGO, "--use_fp8", "FP8"),
    _switch(_ALGO, "--use_fp8_rowwise", "FP8_PER_CHANNEL_PER_TOKEN"),
    *_none("Meta's recipe is not llmc's", "--use_meta_fp8_rowwise_recipe", takes="none"),
    *_none("give the quantized checkpoint as model", "--quant_ckpt_path"),
    _same("quantization.group_size", "--group_size"),
    *_none("files of text: quantization.calibration.data", "--calib_dataset"),
    _same("quantization.calibration.samples", "--calib_size"),
    _same("quantization.calibration.max_tokens", "--calib_max_seq_length"),
    _switch("mapping.use_parallel_embedding", "--use_parallel_embedding"),
    _same("mapping.embedding_sharding_dim", "--embedding_sharding_dim"),
    *_none("shards are always streamed", "--load_by_shard", takes="none"),
    *_none("`llmc build --until checkpoint` writes all of it", "--save_config_only", takes="none"),
    *_none("KV heads are shared by ranks as needed", "--remove_duplicated_kv_heads", takes="none"),
    *_none(_OUTPUT, "--output_dir"),
    *_none(_WORKERS, "--workers"),
    *_none(_LOG, "--log_level"),
)

QUANTIZE: tuple[Flag, ...] = (
    _same("model", "--model_dir"),
    *_none("NeMo checkpoints: export to Hugging Face first", "--nemo_ckpt_path", "--decoder_type"),
    *_none("calibration needs no GPU", "--device", "--calib_tp_size", "--calib_pp_size"),
    _DTYPE,
    Flag(
        names=("--qformat",),
        field=_ALGO,
        values={
            "fp8": "FP8",
            "fp8_pc_pt": "FP8_PER_CHANNEL_PER_TOKEN",
            "int8_sq": "W8A8_SQ_PER_CHANNEL",
            "int4_awq": "W4A16_AWQ",
            "w4a8_awq": "W4A8_AWQ",
            "int8_wo": "W8A16",
            "int4_wo": "W4A16",
            "nvfp4": "NVFP4",
            "full_prec": NOT_SAID,
        },
    ),
    Flag(
        names=("--kv_cache_dtype",),
        field="quantization.kv_cache",
        values={"int8": "INT8", "fp8": "FP8"},
    ),
    _same("quantization.group_size", "--awq_block_size"),
    *_none("files of text: quantization.calibration.data", "--calib_dataset"),
    _same("quantization.calibration.samples", "--calib_size"),
    _same("quantization.calibration.max_tokens", "--calib_max_seq_length"),
    *_none("llmc needs none", "--seed"),
    *_none("llmc chooses it", "--batch_size"),
    *_none("quantization.calibration.max_tokens bounds it", "--tokenizer_max_seq_length"),
    _same("mapping.tp", "--tp_size"),
    _same("mapping.pp", "--pp_size"),
    *_CP,
    *_none(_NO_SPECULATION, "--num_medusa_heads", "--num_medusa_layers", "--max_draft_len"),
    *_none(_NO_SPECULATION, "--medusa_hidden_act", "--medusa_model_dir"),
    *_none(_NO_SPECULATION, "--quant_medusa_head", takes="none"),
    *_none("quantization.algo auto, with quantization.candidates", "--autoq_format"),
    Flag(
        names=("--auto_quantize_bits",),
        field="quantization.target_bits",
        note="also sets quantization.algo to auto",
    ),
    *_none(_OUTPUT, "--output_dir"),
)

_ON: dict[str, Any] = {"enable": True, "disable": False}
_NOT_BUILT = "llmc builds decoders of text"


def _plugins(values: Mapping[str, Any], *names: str) -> tuple[Flag, ...]:
    return tuple(
        Flag(names=(f"--{name}",), field=f"build.plugins.{name}", values=values) for name in names
    )


BUILD: tuple[Flag, ...] = (
    *_none("one recipe does both: model is the Hugging Face directory", "--checkpoint_dir"),
    *_none("set the fields themselves", "--model_config", "--build_config"),
    *_none("families are in llmc/builders/families", "--model_cls_file", "--model_cls_name"),
    *_none(_OUTPUT, "--output_dir"),
    _same("build.max_batch_size", "--max_batch_size"),
    _same("build.max_input_len", "--max_input_len"),
    Flag(names=("--max_seq_len", "--max_decoder_seq_len"), field="build.max_seq_len"),
    _same("build.max_num_tokens", "--max_num_tokens"),
    Flag(names=("--tokens_per_block",), field="build.plugins.tokens_per_block"),
    _same("target.max_beam_width", "--max_beam_width"),
    _same("target.opt_num_tokens", "--opt_num_tokens"),
    *_none("llmc builds decoders alone", "--max_encoder_input_len"),
    Flag(
        names=("--max_prompt_embedding_table_size", "--max_multimodal_len"),
        field="target.max_prompt_embedding_table_size",
    ),
    *_none("the KV cache is always paged", "--kv_cache_type", "--paged_kv_cache", "--paged_state"),
    _same("target.timing_cache", "--input_timing_cache"),
    *_none("target.timing_cache is read and written", "--output_timing_cache"),
    *_none("for debugging TensorRT", "--profiling_verbosity"),
    *_none("for debugging TensorRT", "--enable_debug_output", "--visualize_network", takes="none"),
    *_none("for debugging TensorRT", "--dry_run", "--monitor_memory", takes="none"),
    _switch("target.strip_plan", "--strip_plan"),
    *_none("llmc has no sparse weights", "--weight_sparsity", takes="none"),
    _switch("target.weight_streaming", "--weight_streaming"),
    _switch("build.plugins.manage_weights", "--fast_build"),
    _same("target.workers", "--workers"),
    *_none(_LOG, "--log_level"),
    *_none("logits are float32", "--logits_dtype"),
    _switch("target.gather_context_logits", "--gather_context_logits"),
    _switch("target.gather_context_logits", "--gather_all_token_logits"),
    *_none("asked for by a request, not at build", "--gather_generation_logits", takes="none"),
    Flag(names=("--lora_dir",), field="target.lora_dir", takes="many"),
    Flag(names=("--lora_target_modules",), field="target.lora_target_modules", takes="many"),
    *_none("adapters are Hugging Face's", "--lora_ckpt_source"),
    _same("target.max_lora_rank", "--max_lora_rank"),
    *_plugins({"disable": "none"}, "lora_plugin"),
    *_plugins(_ON, "dora_plugin"),
    *_none(_NO_SPECULATION, "--speculative_decoding_mode", "--max_draft_len"),
    *_none("mapping.tp and mapping.pp", "--auto_parallel", "--gpus_per_node", "--cluster_key"),
    *_none(_NOT_BUILT, "--bert_attention_plugin", "--bert_context_fmha_fp32_acc"),
    *_none(_NOT_BUILT, "--mamba_conv1d_plugin", "--qserve_gemm_plugin"),
    *_plugins({"disable": "none"}, "gpt_attention_plugin", "gemm_plugin", "gemm_swiglu_plugin"),
    *_plugins({"disable": "none"}, "fp8_rowwise_gemm_plugin", "low_latency_gemm_plugin"),
    *_plugins({"disable": "none"}, "low_latency_gemm_swiglu_plugin", "gemm_allreduce_plugin"),
    *_plugins({"disable": "none"}, "nccl_plugin", "moe_plugin"),
    *_plugins(_ON, "context_fmha", "use_paged_context_fmha", "use_fp8_context_fmha"),
    *_plugins(_ON, "fuse_fp4_quant", "streamingllm", "remove_input_padding", "multiple_profiles"),
    *_plugins(_ON, "norm_quant_fusion", "reduce_fusion", "user_buffer", "use_fused_mlp"),
    *_plugins(_ON, "pp_reduce_scatter"),
)

_BOOLEANS: dict[str, Any] = {"True": True, "False": False}
_SERVED = (
    *("preprocessing_instance_count", "postprocessing_instance_count", "bls_instance_count"),
    *("max_queue_delay_microseconds", "max_queue_size", "max_tokens_in_paged_kv_cache"),
    *("kv_cache_free_gpu_mem_fraction", "batch_scheduler_policy"),
    *("enable_chunked_context", "enable_kv_cache_reuse", "exclude_input_in_output"),
    *("cancellation_check_period_ms", "stats_check_period_ms"),
    *("add_special_tokens", "skip_special_tokens", "accumulate_tokens"),
)
"""Placeholders that are named as their field of `serve`."""

_EXECUTOR = (
    *("batching_strategy", "max_beam_width", "sink_token_length", "num_nodes"),
    *("kv_cache_host_memory_bytes", "kv_cache_onboard_blocks", "cross_kv_cache_fraction"),
    *("iter_stats_max_iterations", "request_stats_max_iterations", "recv_poll_period_ms"),
    *("lora_cache_optimal_adapter_size", "lora_cache_max_adapter_size", "lora_prefetch_dir"),
    *("lora_cache_gpu_memory_fraction", "lora_cache_host_memory_bytes"),
    *("decoding_mode", "lookahead_window_size", "lookahead_ngram_size", "normalize_log_probs"),
    *("lookahead_verification_set_size", "speculative_decoding_fast_logits"),
    *("gpu_weights_percent", "enable_context_fmha_fp32_acc", "multi_block_mode"),
    *("enable_trt_overlap", "cuda_graph_mode", "cuda_graph_cache_size"),
    *("guided_decoding_backend", "xgrammar_tokenizer_info_path"),
)
"""Placeholders that are named as their field of `serve.tensorrt_llm`."""

_LISTS: dict[str, Callable[[str], Any]] = {
    "max_attention_window_size": _read_sizes,
    "gpu_device_ids": _read_ids,
    "participant_ids": _read_ids,
    "medusa_choices": _read_tree,
    "eagle_choices": _read_tree,
}
"""The same, of those that are lists."""

_VISION = "llmc builds text models"

FILL_TEMPLATE: tuple[Flag, ...] = (
    Flag(names=("triton_max_batch_size",), field="serve.max_batch_size"),
    Flag(names=("decoupled_mode",), field="serve.decoupled", values=_BOOLEANS),
    *(Flag(names=(name,), field=f"serve.{name}", values=_BOOLEANS) for name in _SERVED),
    *(
        Flag(names=(name,), field=f"serve.tensorrt_llm.{name}", values=_BOOLEANS)
        for name in _EXECUTOR
    ),
    *(
        Flag(names=(name,), field=f"serve.tensorrt_llm.{name}", read=read)
        for name, read in _LISTS.items()
    ),
    *_none("the engine's, `llmc repo emit --tokenizer`, or serve.tokenizer_dir", "tokenizer_dir"),
    *_none("`llmc repo emit --from-engine`, or serve.engine_dir", "engine_dir"),
    *_none("tensorrtllm for TensorRT-LLM's engines, else python", "triton_backend"),
    *_none("the engine's", "logits_datatype"),
    *_none("the model is called tensorrt_llm", "tensorrt_llm_model_name"),
    *_none(_NO_SPECULATION, "tensorrt_llm_draft_model_name"),
    *_none(_VISION, "encoder_engine_dir", "multimodal_model_path"),
    *_none(_VISION, "multimodal_encoders_name", "max_num_images", "hf_model_path"),
    *_none(_VISION, "encoder_input_features_data_type", "prompt_embedding_table_data_type"),
)

TOOLS: dict[str, tuple[Flag, ...]] = {
    "convert_checkpoint.py": CONVERT_CHECKPOINT,
    "quantize.py": QUANTIZE,
    "trtllm-build": BUILD,
    "fill_template.py": FILL_TEMPLATE,
}
"""Program → its flags; of fill_template.py its placeholders."""

IMPLIED: dict[str, dict[str, Any]] = {"trtllm-build": {"target.kind": "tensorrt-llm"}}
"""Program → recipe fields that calling it says, whatever its flags."""
