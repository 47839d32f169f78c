"""TensorRT lowering of `logits_transform`, in float32: a cap is where logits are large."""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    layers = lowering.layers
    logits = layers.scaled(layers.cast(lowering.value(call.inputs[0]), "float32"), attrs["scale"])
    if attrs["softcap"] is not None:
        logits = layers.soft_capped(logits, attrs["softcap"])
    lowering.set_value(call.outputs[0], logits)
