"""quant_method "fp8": DeepSeek's blocks of 128 x 128, and vLLM's one scale per tensor.

Blocks (weight_scale_inv) are refused: no format of TensorRT-LLM's checkpoint up to 1.2 that an
engine can be built from has a scale per block, and any other would round the weights again.

Source: deepseek-ai/DeepSeek-V3 inference/kernel.py (weight_dequant); vLLM 0.8
vllm/model_executor/layers/quantization/fp8.py.
"""

from llmc.arch import ModelArch
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.prequantized import compressed_tensors, fusing
from llmc.builders.hf.prequantized.scheme import (
    FLOATS,
    SCALAR,
    Scheme,
    Stored,
    pattern_matcher,
    strings,
)


def read(config: HfConfig, arch: ModelArch) -> Scheme | None:
    """Return the scheme of a model with one scale per tensor."""
    blocks = config.raw("weight_block_size")
    if blocks is not None:
        config.refuse("weight_block_size", blocks, "none, as TensorRT-LLM has no scales per block")
        return None
    how = config.optional(str, "activation_scheme", "dynamic")
    if how not in ("static", "dynamic"):
        config.refuse("activation_scheme", how, "'static' or 'dynamic'")
        return None
    is_static = how == "static"
    left_out = strings(config, "ignored_layers") + strings(config, "modules_to_not_convert")

    def stored(num_out: int, num_in: int) -> dict[str, Stored]:
        scale = Stored(dtypes=FLOATS, shapes=SCALAR)
        weight = Stored(dtypes=("float8_e4m3fn",), shapes=((num_out, num_in),))
        tensors = {"weight": weight, "weight_scale": scale}
        return tensors | {"input_scale": scale} if is_static else tensors

    return Scheme(
        algo="FP8" if is_static else "FP8_PER_CHANNEL_PER_TOKEN",
        stored=stored,
        convert=fusing.fp8_tensors if is_static else fusing.fp8_rows,
        is_plain=pattern_matcher(left_out),
        clamp=None if is_static else compressed_tensors.NO_CLAMP,
    )
