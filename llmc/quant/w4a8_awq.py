"""W4A8_AWQ: the weights of W4A16_AWQ, inputs scaled per channel and rounded to FP8.

An engine divides the group scales by weights_scaling_factor_2, which brings them into FP8's range,
and multiplies results by activation_scaling_factor * weights_scaling_factor_2; the weight meant is
the same as without them.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/modeling_utils.py, preprocess_perlayer_weights;
ModelOpt 0.37 export of w4a8_awq: both scaling factors are amax / 448.
"""

from llmc.quant import awq, fp8
from llmc.quant.format import Choice, Elements, QuantFormat, QuantizedLinear, group_amax


def pack(elements: Elements, choice: Choice) -> QuantizedLinear:
    """Add the FP8 scales; `choice.global_amax` None is the largest magnitude of the elements."""
    assert choice.input_amax is not None, "W4A8_AWQ needs the largest input"
    amax = choice.global_amax
    if amax is None:
        groups = elements.scale.shape[1]
        amax = float((group_amax(elements.values, groups) * elements.scale).max(initial=0))
    packed = awq.pack(elements, choice)
    return QuantizedLinear(
        tensors=packed.tensors
        | {
            "activation_scaling_factor": fp8.scalar(choice.input_amax),
            "weights_scaling_factor_2": fp8.scalar(amax),
        }
    )


FORMAT = QuantFormat(
    algo="W4A8_AWQ",
    granularity="per_group",
    activation="static fp8",
    needs_calibration=True,
    in_checkpoint="quantized",
    tensors=(
        *awq.TENSORS,
        fp8.scalar_tensor("activation_scaling_factor"),
        fp8.scalar_tensor("weights_scaling_factor_2"),
    ),
    encode=awq.encode,
    pack=pack,
    unpack=awq.unpack,
    weight_bits=4,
    group_sizes=(128,),
    config={"pre_quant_scale": True, "exclude_modules": ("lm_head",)},
)
