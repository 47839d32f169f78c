"""TensorRT lowering of `embedding`: a gather; of ids outside this rank's table, zeros."""

from typing import Any

import numpy as np

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    names = call.weights["weight"]
    shape = (attrs["num_embeddings"], attrs["hidden_size"])
    table = lowering.weight(names[0], shape, lowering.dtype, lambda: lowering.read(names))
    ids, layers = lowering.value(call.inputs[0]), lowering.layers
    if attrs["num_embeddings"] == lowering.vocab_size:
        whole = layers.scaled(layers.gather(table, ids), attrs["scale"])
        lowering.set_value(call.outputs[0], whole)
        return
    local = layers.binary("SUB", ids, layers.like(attrs["vocab_start"], ids))
    lowest, highest = layers.like(0, ids), layers.like(attrs["num_embeddings"] - 1, ids)
    inside = layers.binary("MIN", layers.binary("MAX", local, lowest), highest)
    rows = layers.scaled(layers.gather(table, inside), attrs["scale"])
    # [B, S] → [B, S, 1]
    is_here = layers.reshape(layers.binary("EQUAL", inside, local), (0, 0, 1))
    zero = layers.cast(layers.small(np.zeros((1, 1, 1)), "float32"), lowering.dtype)
    lowering.set_value(call.outputs[0], layers.select(is_here, rows, zero))
