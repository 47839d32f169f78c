"""TensorRT-LLM's options of `attention`: the plugin, and how prompts go through it."""

from llmc.plugins.tensorrt_llm_options import DTYPES, Option

OPTIONS: dict[str, Option] = {
    "gpt_attention_plugin": Option(default="auto", values=DTYPES),
    "context_fmha": Option(default=True),
    "paged_kv_cache": Option(default=None, flag=False),
    "tokens_per_block": Option(default=32),
    "use_paged_context_fmha": Option(default=True),
    "use_fp8_context_fmha": Option(
        default=True, needs={True: ("FP8", "W4A8_AWQ", "NVFP4")}, min_capability=89
    ),
    "fuse_fp4_quant": Option(default=False, needs={True: ("NVFP4",)}),
    "streamingllm": Option(default=False),
}
