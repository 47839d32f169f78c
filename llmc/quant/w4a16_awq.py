"""W4A16_AWQ: INT4 weights in groups along in, inputs scaled per channel but not quantized.

The checkpoint's form does not depend on the GPU: TensorRT-LLM permutes the weight when it builds
the engine (0.17 tensorrt_llm/models/modeling_utils.py, preprocess_perlayer_weights).
"""

from llmc.quant import awq
from llmc.quant.format import QuantFormat

FORMAT = QuantFormat(
    algo="W4A16_AWQ",
    granularity="per_group",
    activation="none",
    needs_calibration=True,
    in_checkpoint="quantized",
    tensors=awq.TENSORS,
    encode=awq.encode,
    pack=awq.pack,
    unpack=awq.unpack,
    weight_bits=4,
    group_sizes=(64, 128),
    config={"pre_quant_scale": True, "exclude_modules": ("lm_head",)},
)
