"""The tensors of one TensorRT-LLM module from the quantized modules it is made of.

Rows of q, k and v follow one another. Where the format has one scale for all of them, it is the
largest, and rows that had another are rounded again: the one loss there is (see `fp8_tensors`).
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from llmc.builders.hf.prequantized.scheme import Array, Source, Tensors
from llmc.dtypes import numpy_dtype
from llmc.errors import CheckpointError
from llmc.quant import fp8, integers
from llmc.quant.format import Choice, Elements, load_format

log = logging.getLogger(__name__)

_E4M3_NAN = 0x7F


def fp8_tensors(sources: Sequence[Source], choice: Choice) -> Tensors:
    """Return tensors of FP8 from weight, weight_scale (one number) and input_scale.

    Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/quantization/layers.py, FP8Linear.postprocess:
    the largest of the scales of q, k and v, and their weights restored and rounded with it.
    """
    scales = [source.scalar("weight_scale") for source in sources]
    shared = max(scales)
    weights = []
    for source, scale in zip(sources, scales, strict=True):
        weight = _e4m3(source)
        if scale != shared:
            log.info(
                "%s: scale %g becomes %g, that of the module it is fused into: rounded again",
                *(source.name, scale, shared),
            )
            restored = weight.astype(np.float32) * scale
            weight = fp8.to_e4m3(restored, np.full((1, 1), shared, np.float32))
        weights.append(weight)
    inputs = max(source.scalar("input_scale") for source in sources)
    return {
        "weight": np.concatenate(weights),
        "weights_scaling_factor": np.array([shared], np.float32),
        "activation_scaling_factor": np.array([inputs], np.float32),
    }


def fp8_rows(sources: Sequence[Source], choice: Choice) -> Tensors:
    """Return tensors of FP8_PER_CHANNEL_PER_TOKEN from weight and weight_scale (a row's or all)."""
    values = np.concatenate([_e4m3(source) for source in sources])
    elements = Elements(values=values, scale=_row_scales(sources))
    return load_format("FP8_PER_CHANNEL_PER_TOKEN").pack(elements, choice).tensors


def int8_per_token(sources: Sequence[Source], choice: Choice) -> Tensors:
    """Return tensors of W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN from weight and weight_scale."""
    values = np.concatenate([source.tensors["weight"] for source in sources])
    elements = Elements(values=values, scale=_row_scales(sources))
    return load_format("W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN").pack(elements, choice).tensors


def int8_static(sources: Sequence[Source], choice: Choice) -> Tensors:
    """Return tensors of W8A8_SQ_PER_CHANNEL from weight, weight_scale and input_scale.

    q, k and v have the same input; should their scales of it differ, the largest holds for all.
    """
    values = np.concatenate([source.tensors["weight"] for source in sources])
    elements = Elements(values=values, scale=_row_scales(sources))
    tensors = load_format("W8A8_SQ_PER_CHANNEL").pack(elements, choice).tensors
    inputs = max(source.scalar("input_scale") for source in sources)
    return tensors | {"activation_scaling_factor": np.array([inputs], np.float32)}


def nvfp4_tensors(sources: Sequence[Source], choice: Choice) -> Tensors:
    """Return tensors of NVFP4 from weight, weight_scale, weight_scale_2 and input_scale.

    Raises: CheckpointError when q, k and v do not share weight_scale_2: TensorRT-LLM has one.
    """
    wholes = [source.scalar("weight_scale_2") for source in sources]
    for source, whole in zip(sources, wholes, strict=True):
        source.scales("weight_scale")
        if whole != wholes[0]:
            raise CheckpointError(
                f"{source.name}.weight_scale_2: {whole:g}, expected {wholes[0]:g} as"
                f" {sources[0].name} has it: they become one module"
            )
    inputs = max(source.scalar("input_scale") for source in sources)
    return {
        "weight": np.concatenate([source.tensors["weight"] for source in sources]),
        "weights_scaling_factor": np.concatenate(
            [source.tensors["weight_scale"] for source in sources]
        ),
        "weights_scaling_factor_2": np.array(wholes[0], np.float32),
        "activation_scaling_factor": np.array(inputs, np.float32),
    }


def awq_tensors(sources: Sequence[Source], choice: Choice) -> Tensors:
    """Return tensors of W4A16_AWQ from ModelOpt's: two rows to a byte, a scale per group.

    What inputs are multiplied by is folded into the norm already where there is no pre_quant_scale.
    Raises: CheckpointError when q, k and v are not alike in it.
    """
    return _awq_packed("W4A16_AWQ", sources, choice)


def awq_with_fp8(sources: Sequence[Source], choice: Choice) -> Tensors:
    """Return tensors of W4A8_AWQ: as W4A16_AWQ, and the scales of FP8 inputs and products."""
    tensors = _awq_packed("W4A8_AWQ", sources, choice)
    for role, suffix in (
        ("activation_scaling_factor", "input_scale"),
        ("weights_scaling_factor_2", "weight_scale_2"),
    ):
        tensors[role] = np.array([max(source.scalar(suffix) for source in sources)], np.float32)
    return tensors


def _awq_packed(algo: str, sources: Sequence[Source], choice: Choice) -> Tensors:
    values = np.concatenate([integers.unpack_nibbles(one.tensors["weight"], 0) for one in sources])
    scale = np.concatenate([source.scales("weight_scale") for source in sources])
    ones: Array = np.ones(values.shape[1], np.float32)
    prequants = [source.tensors.get("pre_quant_scale", ones) for source in sources]
    for source, prequant in zip(sources, prequants, strict=True):
        if not np.array_equal(prequant, prequants[0]):
            raise CheckpointError(
                f"{source.name}.pre_quant_scale: not as {sources[0].name} has it: they become one"
                " module"
            )
    elements = Elements(values=values, scale=_regrouped(scale, values, choice))
    scaled = replace(choice, prequant=prequants[0].astype(np.float32))
    return load_format(algo).pack(elements, scaled).tensors


def int4_symmetric(codes: Array, scale: npt.NDArray[np.float32], choice: Choice) -> Tensors:
    """Return tensors of W4A16_AWQ: codes 0..15 [out, in] about 8, scale [out, groups]."""
    values = codes.astype(np.int8) - np.int8(8)
    elements = Elements(values=values, scale=_regrouped(scale, values, choice))
    return load_format("W4A16_AWQ").pack(elements, choice).tensors


def int4_with_zeros(
    codes: Array, scale: npt.NDArray[np.float32], zero_point: Array, choice: Choice, name: str
) -> Tensors:
    """Return tensors of W4A16_GPTQ: weight = (code - zero_point) * scale.

    The format keeps (8 - zero_point) * scale, rounded to the model's dtype, as TensorRT-LLM does.
    Raises: CheckpointError when that dtype does not hold the scales.
    """
    dtype = numpy_dtype(choice.dtype)
    with np.errstate(over="ignore"):
        kept = scale.astype(dtype).astype(np.float32)
    if not np.array_equal(kept, scale):
        where = int(np.argmax((kept != scale).reshape(-1)))
        raise CheckpointError(
            f"{name}: scale {scale.reshape(-1)[where]:.9g} is no number of {choice.dtype}",
            hint="choose the dtype the scales are saved in, mostly float16",
        )
    zero = (np.float32(8) - zero_point.astype(np.float32)) * scale
    zero = zero.astype(dtype).astype(np.float32)
    values = codes.astype(np.int8) - np.int8(8)
    elements = Elements(
        values=values,
        scale=_regrouped(scale, values, choice),
        zero=_regrouped(zero, values, choice),
    )
    return load_format("W4A16_GPTQ").pack(elements, choice).tensors


def nibbles(packed: Array, axis: int) -> npt.NDArray[np.uint8]:
    """Return the eight 4-bit numbers of every int32, the lowest bits first, along `axis`."""
    if axis == 0:
        return np.ascontiguousarray(nibbles(packed.T, 1).T)
    data = np.ascontiguousarray(packed, "<i4").view(np.uint8)
    codes: npt.NDArray[np.uint8] = np.empty((data.shape[0], 2 * data.shape[1]), np.uint8)
    codes[:, ::2] = data & 0x0F
    codes[:, 1::2] = data >> 4
    return codes


def _e4m3(source: Source) -> Array:
    weight = source.tensors["weight"]
    bad = (weight.view(np.uint8) & _E4M3_NAN) == _E4M3_NAN
    if bad.any():
        where = [int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape)]
        raise CheckpointError(f"{source.name}.weight: NaN at {where}, expected a finite number")
    return weight


def _row_scales(sources: Sequence[Source]) -> npt.NDArray[np.float32]:
    """Return weight_scale as [out, 1], one number repeated for every row."""
    scales = [
        np.broadcast_to(
            source.scales("weight_scale").reshape(-1, 1), (source.tensors["weight"].shape[0], 1)
        )
        for source in sources
    ]
    return np.concatenate(scales)


def _regrouped(
    scale: npt.NDArray[np.float32], values: Array, choice: Choice
) -> npt.NDArray[np.float32]:
    """Repeat each group's number for the smaller groups of the checkpoint."""
    repeats, rest = divmod(values.shape[1], choice.group_size * scale.shape[1])
    assert rest == 0, (scale.shape, values.shape, choice.group_size)
    return np.repeat(scale, repeats, axis=1)
