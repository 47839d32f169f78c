"""CPU lowering of `linear`: packs the weight into panels, quantized if the call says so.

The target may have fused what follows: a second input is the residual to add, and the attribute
`fused_activation` says that the two halves of the output are gated in the epilogue.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.dtypes import dtype_name
from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall
from llmc.plugins.panels import PANEL, interleave_halves, pack_panels, pad_columns, padded
from llmc.quant import w8a16

QUANTIZATIONS = ("none", "W8A16")
MAX_IN_FEATURES = 40960
"""A thread's scratch memory holds a tile of rows this long (plugins/csrc/kernel.h)."""


def unsupported(call: OpCall) -> list[str]:
    reasons = []
    quant, num_in = call.attrs["quant"], call.attrs["in_features"]
    assert isinstance(num_in, int)
    if quant not in QUANTIZATIONS:
        reasons.append(
            f"{call.name}: quantization {quant!r}, the cpu target has {', '.join(QUANTIZATIONS)}"
        )
    if num_in > MAX_IN_FEATURES:
        reasons.append(f"{call.name}: {num_in} input features, expected at most {MAX_IN_FEATURES}")
    return reasons


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    num_in, num_out = call.attrs["in_features"], call.attrs["out_features"]
    assert isinstance(num_in, int) and isinstance(num_out, int)
    gated = "fused_activation" in call.attrs
    columns = num_out // 2 if gated else num_out
    weight, scale = _weight(call, lowering)
    bias = None
    if "bias" in call.weights:
        bias = lowering.read(call.weights["bias"]).astype(np.float32)
    if gated:
        weight = interleave_halves(weight)
        scale, bias = (None if x is None else interleave_halves(x) for x in (scale, bias))
    tensors: list[str | None] = [lowering.write(f"{call.name}.weight", pack_panels(weight))]
    for role, vector in (("scale", scale), ("bias", bias)):
        name = f"{call.name}.{role}"
        tensors.append(None if vector is None else lowering.write(name, pad_columns(vector)))
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), columns)
    return [
        CpuOp(
            kind="linear",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            type=dtype_name(weight.dtype),
            gated=gated,
            dims=(num_in, columns, padded(weight.shape[0]) // PANEL),
            tensors=tuple(tensors),
        )
    ]


def _weight(
    call: OpCall, lowering: Lowering
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32] | None]:
    """Return the weight [out, in] as stored and its per-channel scale, if quantized."""
    weight = lowering.read(call.weights["weight"])
    assert weight.shape == (call.attrs["out_features"], call.attrs["in_features"]), call.name
    if call.attrs["quant"] == "W8A16":
        return w8a16.quantize(weight, dtype=lowering.dtype)
    return weight, None
