"""Number formats of weights: one file each, exporting `FORMAT` and its pure numpy arithmetic.

Names are TensorRT-LLM's `quant_algo`. Load one with `llmc.quant.format.load_format(algo)`. How a
weight is chosen (calibration, error feedback) is not known here; `layouts` permutes packed weights
for one GPU generation, `combinations` says what TensorRT-LLM forbids.
"""

__all__ = ["FORMATS"]
FORMATS: dict[str, str] = {
    "W8A16": "w8a16",
    "W4A16": "w4a16",
    "W4A16_AWQ": "w4a16_awq",
    "W4A16_GPTQ": "w4a16_gptq",
    "W4A8_AWQ": "w4a8_awq",
    "W8A8_SQ_PER_CHANNEL": "w8a8_sq_per_channel",
    "W8A8_SQ_PER_TENSOR_PLUGIN": "w8a8_sq_per_tensor_plugin",
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN": "w8a8_sq_per_channel_per_tensor_plugin",
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN": "w8a8_sq_per_tensor_per_token_plugin",
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": "w8a8_sq_per_channel_per_token_plugin",
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8_per_channel_per_token",
    "NVFP4": "nvfp4",
}
"""quant_algo → module of this package."""
