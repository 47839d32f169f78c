"""Networks of a few layers, made by hand, and their outputs by the interpreter."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from llmc.builders.targets.tensorrt_interpreter.graph import HELD
from llmc.builders.targets.tensorrt_interpreter.inputs import Mode
from llmc.builders.targets.tensorrt_interpreter.reader import read_network
from llmc.builders.targets.tensorrt_interpreter.run import evaluate

trt: Any = pytest.importorskip("tensorrt_rtx_bindings", reason="needs llmc[rtx]")

LOGGER = trt.Logger(trt.Logger.INTERNAL_ERROR)
BUILDER = trt.Builder(LOGGER)


class SmallNetwork:
    """An INetworkDefinition, and what its constants point to."""

    def __init__(self) -> None:
        self.definition = BUILDER.create_network(0)
        self._kept: list[Any] = []

    def input(self, name: str, dtype: str, *shape: int) -> Any:
        return self.definition.add_input(name, getattr(trt.DataType, dtype), shape)

    def constant(self, values: torch.Tensor | np.ndarray[Any, Any], dtype: str) -> Any:
        """Add values of any type torch has; FP4 and INT4 are bytes of two, in one axis."""
        tensor = torch.as_tensor(values).contiguous()
        self._kept.append(tensor)
        shape = tuple(tensor.shape)
        if dtype in ("FP4", "INT4"):
            shape = (*shape[:-1], shape[-1] * 2)
        weights = trt.Weights(
            getattr(trt.DataType, dtype), tensor.data_ptr(), int(np.prod(shape, dtype=np.int64))
        )
        return self.definition.add_constant(shape, weights).get_output(0)

    def output(self, tensor: Any, name: str) -> None:
        tensor.name = name
        self.definition.mark_output(tensor)

    def run(self, inputs: Mapping[str, torch.Tensor], mode: Mode = "ideal") -> dict[str, Any]:
        graph = read_network(self.definition)
        held = {name: inputs[name].to(HELD[info.dtype]) for name, info in graph.inputs.items()}
        return evaluate(graph, held, mode)


def run_layer(make: Any, *inputs: tuple[torch.Tensor, str], mode: Mode = "ideal") -> torch.Tensor:
    """Return the first output of the layer that `make(network, *tensors)` adds."""
    network = SmallNetwork()
    tensors = [
        network.input(f"input{index}", dtype, *values.shape)
        for index, (values, dtype) in enumerate(inputs)
    ]
    layer = make(network, *tensors)
    assert layer is not None
    network.output(layer.get_output(0), "result")
    given = {f"input{index}": values for index, (values, _) in enumerate(inputs)}
    result: torch.Tensor = network.run(given, mode)["result"]
    return result
