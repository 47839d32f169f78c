"""Runs one op of a network through its CPU lowering, on a chosen instruction set."""

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.plugins import graph, native
from llmc.plugins.cpu_program import FLAG_GATED, KINDS, TYPES, CpuOp
from llmc.plugins.graph import OpCall
from tests.plugins.kernels_cpu import Float32Array, team
from tests.plugins.quantized_linears import MemoryLowering


class LoweredCall:
    """A call whose rows are tokens, lowered once over tensors in memory."""

    def __init__(self, call: OpCall, tensors: dict[str, npt.NDArray[Any]], dtype: str) -> None:
        graph.check_call(call, graph.spec(call.plugin))
        module = graph.part(call.plugin, "cpu")
        assert module.unsupported(call) == []
        self.call = call
        self.lowering = MemoryLowering(tensors=tensors, dtype=dtype)
        self.ops: list[CpuOp] = module.lower(call, self.lowering)

    def __call__(self, instruction_set: str, *inputs: Float32Array) -> Float32Array:
        count = inputs[0].shape[0]
        buffers = dict(zip(self.call.inputs, map(np.ascontiguousarray, inputs), strict=True))
        for name, columns in self.lowering.columns.items():
            buffers[name] = np.full((count, columns), np.nan, np.float32)
        places = {name: place for place, name in enumerate(buffers)}
        batch = native.NativeBatch(num_tokens=count, num_logits=count)
        ops = [self._native(op, places) for op in self.ops]
        team(instruction_set).run(ops, batch, [array.ctypes.data for array in buffers.values()])
        return buffers[self.call.outputs[0]]

    def _native(self, op: CpuOp, places: dict[str, int]) -> native.NativeOp:
        found = native.NativeOp(
            kind=KINDS[op.kind],
            type=TYPES[op.type],
            input=places[op.inputs[0]],
            input2=places[op.inputs[1]] if len(op.inputs) > 1 else -1,
            output=places[op.outputs[0]] if op.outputs else -1,
            flags=FLAG_GATED * op.gated,
        )
        found.dim[: len(op.dims)] = op.dims
        found.param[: len(op.params)] = op.params
        for place, name in enumerate(op.tensors):
            found.tensor[place] = None if name is None else self.lowering.written[name].ctypes.data
        return found
