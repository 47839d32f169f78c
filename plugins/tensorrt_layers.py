"""Adds TensorRT layers, named after the op and checkpoint tensor they come from.

TensorRT returns None where it refuses a layer; here that is an error with that name. `trt` is the
module of whichever TensorRT builds (tensorrt_rtx_bindings or tensorrt); enums are named by text.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from llmc.errors import BuildError

Tensor = Any

DATA_TYPES: dict[str, str] = {
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BF16",
    "float8_e4m3fn": "FP8",
    "float4_e2m1": "FP4",
    "int8": "INT8",
    "int4": "INT4",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
}
"""Our element type → trt.DataType."""


class Layers:
    """One network under construction. `scope` is the name of the op being lowered."""

    def __init__(self, trt: Any, network: Any, last_error: Callable[[], str]) -> None:
        self.trt, self.network = trt, network
        self.scope = ""
        self._last_error = last_error
        self._names: dict[str, int] = {}
        self.kept: list[Any] = []

    def data_type(self, dtype: str) -> Any:
        return getattr(self.trt.DataType, DATA_TYPES[dtype])

    def named(self, layer: Any, part: str) -> Any:
        """Name `layer` "<scope>/<part>", numbered where that is taken, and return it.

        Raises: BuildError when TensorRT refused it.
        """
        if layer is None:
            raise self._refusal(part)
        name = f"{self.scope}/{part}"
        count = self._names[name] = self._names.get(name, 0) + 1
        layer.name = name if count == 1 else f"{name}.{count}"
        return layer

    def output(self, layer: Any, part: str) -> Tensor:
        """Name `layer` and its first output alike; return the output.

        Raises: BuildError when TensorRT refuses the layer or its inputs.
        """
        tensor = self.named(layer, part).get_output(0)
        tensor.name = layer.name
        try:
            tensor.shape  # noqa: B018  (inputs that do not fit show only where a shape is asked for)
        except RuntimeError as error:
            raise self._refusal(part) from error
        return tensor

    def _refusal(self, part: str) -> BuildError:
        return BuildError(
            f"{self.scope}: TensorRT refuses the layer {part!r}: {self._last_error()}"
        )

    def small(self, values: Any, dtype: str, part: str = "constant") -> Tensor:
        """Add a constant of a few numbers."""
        array = np.ascontiguousarray(values, np.dtype(dtype)).reshape(np.shape(values))
        self.kept.append(array)
        weights = self.trt.Weights(self.data_type(dtype), array.ctypes.data, array.size)
        return self.output(self.network.add_constant(array.shape, weights), part)

    def like(self, value: float, tensor: Tensor) -> Tensor:
        """Add one number with the type of `tensor` and as many axes."""
        dtype = self.dtype_of(tensor)
        wide = "float32" if dtype in ("float16", "bfloat16") else dtype
        number = np.full((1,) * len(tensor.shape), value, np.dtype(wide))
        return self.cast(self.small(number, wide), dtype)

    def dtype_of(self, tensor: Tensor) -> str:
        return next(name for name in DATA_TYPES if self.data_type(name) == tensor.dtype)

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return `tensor` itself when it is of `dtype`."""
        wanted = self.data_type(dtype)
        if tensor.dtype == wanted:
            return tensor
        return self.output(self.network.add_cast(tensor, wanted), "cast")

    def binary(self, operation: str, a: Tensor, b: Tensor) -> Tensor:
        """Add an elementwise operation of trt.ElementWiseOperation: PROD, SUM, DIV, …"""
        kind = getattr(self.trt.ElementWiseOperation, operation)
        return self.output(self.network.add_elementwise(a, b, kind), operation.lower())

    def scaled(self, tensor: Tensor, factor: float) -> Tensor:
        """Multiply by a number, in float32: a narrower type would round the number itself."""
        if factor == 1.0:
            return tensor
        wide = self.cast(tensor, "float32")
        return self.cast(self.binary("PROD", wide, self.like(factor, wide)), self.dtype_of(tensor))

    def soft_capped(self, tensor: Tensor, cap: float) -> Tensor:
        """Return cap * tanh(x / cap)."""
        return self.scaled(self.activation("TANH", self.scaled(tensor, 1.0 / cap)), cap)

    def softmax(self, tensor: Tensor, axis: int) -> Tensor:
        layer = self.network.add_softmax(tensor)
        layer.axes = 1 << axis
        return self.output(layer, "softmax")

    def concatenate(self, tensors: list[Tensor], axis: int) -> Tensor:
        layer = self.network.add_concatenation(tensors)
        layer.axis = axis
        return self.output(layer, "concatenate")

    def unary(self, operation: str, tensor: Tensor) -> Tensor:
        """Add an operation of trt.UnaryOperation: SQRT, EXP, ERF, …"""
        kind = getattr(self.trt.UnaryOperation, operation)
        return self.output(self.network.add_unary(tensor, kind), operation.lower())

    def activation(self, kind: str, tensor: Tensor) -> Tensor:
        """Add an operation of trt.ActivationType: SIGMOID, TANH, RELU, GELU_ERF, GELU_TANH."""
        found = getattr(self.trt.ActivationType, kind)
        return self.output(self.network.add_activation(tensor, found), kind.lower())

    def reduce(self, operation: str, tensor: Tensor, axis: int) -> Tensor:
        """Reduce one axis to length 1 by trt.ReduceOperation."""
        kind = getattr(self.trt.ReduceOperation, operation)
        layer = self.network.add_reduce(tensor, kind, 1 << axis, True)
        return self.output(layer, f"reduce_{operation.lower()}")

    def matmul(self, a: Tensor, b: Tensor, *, transpose_b: bool = False) -> Tensor:
        operation = self.trt.MatrixOperation
        second = operation.TRANSPOSE if transpose_b else operation.NONE
        return self.output(self.network.add_matrix_multiply(a, operation.NONE, b, second), "matmul")

    def reshape(
        self, tensor: Tensor, dims: tuple[int, ...], *, transpose: tuple[int, ...] | None = None
    ) -> Tensor:
        """Reshape (0 keeps a length, -1 takes the rest), then permute the axes."""
        layer = self.network.add_shuffle(tensor)
        layer.reshape_dims = dims
        if transpose is not None:
            layer.second_transpose = transpose
        return self.output(layer, "shuffle")

    def transpose(self, tensor: Tensor, order: tuple[int, ...], reshape: tuple[int, ...]) -> Tensor:
        """Permute the axes, then reshape."""
        layer = self.network.add_shuffle(tensor)
        layer.first_transpose = order
        layer.reshape_dims = reshape
        return self.output(layer, "shuffle")

    def columns(self, tensor: Tensor, start: int, count: int) -> Tensor:
        """Return columns [start, start + count) of the last axis of a tensor [B, S, columns].

        They are cut as whole parts of a fourth axis. Cut from the last axis, columns of a product
        would have the builder cut its weight, and keep a second copy of it in the one profile whose
        kernels it joins again: a third more memory, of a plan and of the GPU.
        """
        size = math.gcd(start, count, tensor.shape[2])
        parts = self.split_last(tensor, tensor.shape[2] // size)
        return self.reshape(self.cut(parts, 2, start // size, count // size), (0, 0, count))

    def in_rows_of(self, tensor: Tensor, model: Tensor, count: int) -> Tensor:
        """Reshape to [B, S, count], B and S those of `model` [B, S, columns]."""
        shape = self.output(self.network.add_shape(model), "shape")
        rows = self.output(self.network.add_slice(shape, (0,), (2,), (1,)), "rows")
        size = self.network.add_concatenation([rows, self.small([count], "int64")])
        size.axis = 0
        layer = self.network.add_shuffle(tensor)
        layer.set_input(1, self.output(size, "size"))
        return self.output(layer, "shuffle")

    def cut(self, tensor: Tensor, axis: int, start: int, count: int) -> Tensor:
        """Return places [start, start + count) of an axis."""
        return self._run(tensor, axis, start, count - tensor.shape[axis], "STRICT_BOUNDS", "cut")

    def padded(self, tensor: Tensor, axis: int, count: int) -> Tensor:
        """Return a tensor with `count` zeros behind the last of an axis."""
        return self._run(tensor, axis, 0, count, "FILL", "padded") if count else tensor

    def _run(
        self, tensor: Tensor, axis: int, start: int, longer: int, mode: str, part: str
    ) -> Tensor:
        """Slice one axis, to a length that is by `longer` more than it was."""
        rank = len(tensor.shape)
        zeros, begin, added = ([0] * rank for _ in range(3))
        begin[axis], added[axis] = start, longer
        shape = self.output(self.network.add_shape(tensor), "shape")
        size = self.binary("SUM", shape, self.small(added, "int64"))
        layer = self.network.add_slice(tensor, begin, zeros, (1,) * rank)
        layer.mode = getattr(self.trt.SampleMode, mode)
        layer.set_input(2, size)
        return self.output(layer, part)

    def gather(
        self, table: Tensor, indices: Tensor, *, axis: int = 0, batched: bool = False
    ) -> Tensor:
        """Take rows of table [N, columns], or of another axis; batched: each slot's of table
        [B, S, columns]."""
        layer = self.network.add_gather(table, indices, 1 if batched else axis)
        if batched:
            layer.num_elementwise_dims = 1
        return self.output(layer, "gather")

    def gather_each(self, tensor: Tensor, places: Tensor) -> Tensor:
        """Take, of each row of the last axis, the elements at that row's own places."""
        layer = self.network.add_gather_v2(tensor, places, self.trt.GatherMode.ELEMENT)
        layer.axis = len(tensor.shape) - 1
        return self.output(layer, "gather_each")

    def largest(self, tensor: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` largest along the last axis, falling, and their places, int32.

        Of equals the first is the larger (builders/targets/tensorrt_interpreter/indexing.py).
        """
        axes = 1 << (len(tensor.shape) - 1)
        layer = self.network.add_topk(tensor, self.trt.TopKOperation.MAX, count, axes)
        values = self.output(layer, "largest")
        places = layer.get_output(1)
        places.name = f"{values.name}.places"
        return values, places

    def quantize(self, tensor: Tensor, scale: Tensor, dtype: str) -> Tensor:
        layer = self.network.add_quantize(tensor, scale, self.data_type(dtype))
        return self.output(layer, "quantize")

    def dequantize(
        self,
        tensor: Tensor,
        scale: Tensor,
        dtype: str,
        *,
        axis: int | None = None,
    ) -> Tensor:
        """Multiply by a scale: one for all, one for each place on `axis`, or one for each block,
        whose size is that of the tensor by that of the scale."""
        layer = self.network.add_dequantize(tensor, scale, self.data_type(dtype))
        if axis is not None:
            layer.axis = axis
        return self.output(layer, "dequantize")

    def split_last(self, tensor: Tensor, count: int) -> Tensor:
        """Return [B, S, count, columns / count] of a tensor [B, S, columns]."""
        return self.reshape(tensor, (0, 0, count, tensor.shape[2] // count))

    def select(self, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return self.output(self.network.add_select(condition, a, b), "select")

    def unsqueeze(self, tensor: Tensor) -> Tensor:
        """Return a tensor with an axis of 1 in front."""
        axes = self.small([0], "int64")
        return self.output(self.network.add_unsqueeze(tensor, axes), "unsqueeze")

    def collective(self, operation: str, tensor: Tensor, group: tuple[int, ...]) -> Tensor:
        """Add ALL_REDUCE (a sum) or ALL_GATHER (along the first axis) over the ranks of `group`.

        The layer shows neither operation nor group to a reader: its metadata has both, as JSON.
        """
        trt = self.trt
        reduction = (
            trt.ReduceOperation.SUM if operation == "ALL_REDUCE" else trt.ReduceOperation.NONE
        )
        kind = getattr(trt.CollectiveOperation, operation)
        layer = self.network.add_dist_collective(
            tensor, kind, reduction, -1, np.array(group, np.int64)
        )
        metadata = json.dumps({"collective": operation, "group": list(group)})
        tensor = self.output(layer, operation.lower())
        layer.metadata = metadata
        layer.num_ranks = len(group)
        return tensor
