"""Common keys of config.json that the oldest of TensorRT-LLM's converters do not write.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/{bloom,gptneox,mpt,opt}/convert.py.
"""

ROTARY = ("rotary_base", "rotary_embedding_dim", "rotary_scaling")
BIASES = ("attn_bias", "mlp_bias", "tie_word_embeddings")
"""What families whose class implies it leave unsaid, the newer ones too."""

EARLY = (
    *("mapping.cp_size", "mapping.gpus_per_node", "mapping.moe_ep_size", "mapping.moe_tp_size"),
    *("quantization.clamp_val", "quantization.exclude_modules", "quantization.group_size"),
    *("quantization.has_zero_point", "quantization.pre_quant_scale"),
    *("quantization.smoothquant_val", "quantization.use_meta_recipe"),
    *("head_size", "qk_layernorm", "runtime_defaults"),
    *ROTARY,
    *BIASES,
)
EARLIEST = (
    *EARLY,
    *("logits_dtype", "norm_epsilon", "num_key_value_heads", "intermediate_size"),
    "quantization.kv_cache_quant_algo",
)
