"""What the four W8A8_SQ_*_PLUGIN formats share.

Weights are INT8 with a scale per output channel or one (q, k and v have one each, spelled out per
channel). Inputs are divided by `smoother` before dense and proj; before qkv, fc and gate the norm's
weight has been. Inputs are then quantized per token, or by `scale_to_int` = 127 / input amax.

With static inputs the two scales after the product are of the output: per_channel_scale = input
amax / 127 * weight scale * 127 / output amax and act_scale = output amax / 127. Engines multiply by
both, so that the output's amax matters to none but INT8 outputs.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/convert_utils.py, generate_int8, and
models/llama/convert.py, get_tllm_linear_sq_weight; the arithmetic here is in float32 throughout,
theirs partly in the model's dtype.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.quant import integers
from llmc.quant.format import (
    Choice,
    Elements,
    QuantFormat,
    QuantizedLinear,
    QuantTensor,
    group_amax,
    never_zero,
)

_RANGE = np.float32(127)


def smoothquant_format(algo: str, *, per_channel: bool, per_token: bool) -> QuantFormat:
    """Return one of the four formats."""

    def encode(weight: npt.NDArray[Any], choice: Choice) -> Elements:
        amax = group_amax(weight, 1) if choice.weight_amax is None else choice.weight_amax
        amax = np.broadcast_to(amax, (weight.shape[0], 1))
        if not per_channel:
            amax = _share(amax, choice)
        scale = amax / _RANGE
        values = integers.encode(
            weight, scale, lowest=-127, highest=127, rounding=integers.half_even
        )
        return Elements(values=values, scale=scale)

    def pack(elements: Elements, choice: Choice) -> QuantizedLinear:
        scale = np.broadcast_to(elements.scale, (elements.values.shape[0], 1)).T
        if not per_channel and choice.module != "qkv":
            assert (scale == scale[0, 0]).all(), "one scale for the whole weight"
            scale = scale[:, :1]
        tensors: dict[str, npt.NDArray[Any]] = {"weight": elements.values}
        if per_token:
            tensors["per_channel_scale"] = np.ascontiguousarray(scale)
            if choice.module in _NORMED:
                tensors["scale_to_int"] = np.ones(1, np.float32)
        else:
            tensors |= _static_scales(scale, choice)
        if choice.module in _SMOOTHED:
            num_in = elements.values.shape[1]
            smoother = np.ones(num_in, np.float32) if choice.smoother is None else choice.smoother
            tensors["smoother"] = smoother.astype(np.float32).reshape(1, num_in)
        return QuantizedLinear(tensors=tensors)

    def unpack(quantized: QuantizedLinear) -> Elements:
        tensors = quantized.tensors
        scale = tensors["per_channel_scale"].reshape(-1, 1)
        if not per_token:
            scale = scale * tensors["act_scale"] * tensors["scale_to_int"]
        return Elements(values=tensors["weight"], scale=scale)

    return QuantFormat(
        algo=algo,
        granularity="per_channel" if per_channel else "per_tensor",
        activation="per-token int8" if per_token else "static int8",
        needs_calibration=True,
        in_checkpoint="quantized",
        tensors=_declare(per_channel=per_channel, per_token=per_token),
        encode=encode,
        pack=pack,
        unpack=unpack,
        weight_bits=8,
        reads_output=not per_token,
    )


_SMOOTHED = ("dense", "proj")
_NORMED = ("qkv", "fc", "gate")


def _share(amax: npt.NDArray[np.float32], choice: Choice) -> npt.NDArray[np.float32]:
    """Give every row the largest magnitude of its segment."""
    shared = np.empty(amax.shape, np.float32)
    start = 0
    for rows in choice.segments or (len(amax),):
        shared[start : start + rows] = amax[start : start + rows].max(initial=0)
        start += rows
    assert start == len(amax), (choice.segments, len(amax))
    return shared


def _static_scales(scale: npt.NDArray[np.float32], choice: Choice) -> dict[str, npt.NDArray[Any]]:
    assert choice.input_amax is not None and choice.output_amax is not None, "needs calibration"
    scale_in = never_zero(np.array([choice.input_amax], np.float32) / _RANGE)
    scale_out = never_zero(np.array([[choice.output_amax]], np.float32) / _RANGE)
    return {
        "per_channel_scale": scale * scale_in / scale_out,
        "act_scale": scale_out,
        "scale_to_int": 1 / scale_in,
    }


def _declare(*, per_channel: bool, per_token: bool) -> tuple[QuantTensor, ...]:
    tensors = [
        QuantTensor(
            role="weight",
            dtype="int8",
            shape=lambda num_out, num_in, group: (num_out, num_in),
            out_axis=0,
            in_axis=1,
        ),
        QuantTensor(
            role="per_channel_scale",
            dtype="float32",
            shape=lambda num_out, num_in, group: (1, num_out),
            out_axis=1,
            modules=None if per_channel else ("qkv",),
        ),
    ]
    if not per_channel:
        tensors.append(
            QuantTensor(
                role="per_channel_scale",
                dtype="float32",
                shape=lambda num_out, num_in, group: (1, 1),
                modules=("dense", "fc", "gate", "proj"),
            )
        )
    if not per_token:
        tensors.append(
            QuantTensor(
                role="act_scale",
                dtype="float32",
                shape=lambda num_out, num_in, group: (1, 1),
            )
        )
    return (
        *tensors,
        QuantTensor(
            role="scale_to_int",
            dtype="float32",
            shape=lambda num_out, num_in, group: (1,),
            modules=_NORMED if per_token else None,
            beside_input=True,
        ),
        QuantTensor(
            role="smoother",
            dtype="float32",
            shape=lambda num_out, num_in, group: (1, num_in),
            in_axis=1,
            modules=_SMOOTHED,
        ),
    )
