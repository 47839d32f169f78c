"""A device and a plan without a GPU: the interpreter evaluates the network in host memory.

It has the interface of the GPU border (llmc.runtime.engines.tensorrt_device) and is stricter than a
GPU: each call checks shapes against the profile, that a cache's output lies in its input's memory,
that all memory was allocated, that weights are bound once, and that nothing is written outside a
slot.
"""

import ctypes
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llmc.builders.targets.tensorrt_interpreter.graph import HELD, Graph, TensorInfo
from llmc.builders.targets.tensorrt_interpreter.inputs import Mode
from llmc.builders.targets.tensorrt_interpreter.run import evaluate
from llmc.runtime.engines.tensorrt_device import Phase, PlanTensor

STORED: dict[str, torch.dtype] = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "INT32": torch.int32,
}

ALIGNMENT = 256
POISON = 0x6D
"""Every byte of fresh memory: a large finite number in each floating type."""


class HostDevice:
    """Memory of the process, as a device's. Nothing happens later than it is asked for."""

    def __init__(self, free_bytes: int = 1 << 30) -> None:
        self.free_bytes = free_bytes
        self._memory: dict[int, npt.NDArray[np.uint8]] = {}
        self.num_copied_bytes = 0
        self.closed = False

    def allocate(self, num_bytes: int) -> int:
        assert num_bytes > 0
        memory = np.full(num_bytes + ALIGNMENT, POISON, np.uint8)
        address = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._memory[address] = memory[address - memory.ctypes.data :][:num_bytes]
        return address

    def bytes_at(self, address: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return memory that lies whole in one allocation."""
        assert not self.closed
        for start, memory in self._memory.items():
            if start <= address and address + num_bytes <= start + memory.size:
                return memory[address - start :][:num_bytes]
        raise AssertionError(f"{num_bytes} bytes at {address:#x}: not allocated")

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        assert array.flags.c_contiguous
        self.bytes_at(address, array.nbytes)[:] = array.reshape(-1).view(np.uint8)

    def download(self, array: npt.NDArray[Any], address: int) -> None:
        assert array.flags.c_contiguous
        ctypes.memmove(
            array.ctypes.data, self.bytes_at(address, array.nbytes).ctypes.data, array.nbytes
        )

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        self.bytes_at(target, num_bytes)[:] = self.bytes_at(source, num_bytes)
        self.num_copied_bytes += num_bytes

    def close(self) -> None:
        self.closed = True


class StandInPlan:
    """A network of one rank, with profiles of so many rows, tokens and logits."""

    def __init__(
        self,
        device: HostDevice,
        graph: Graph,
        profiles: Mapping[Phase, tuple[int, int, int]],
        *,
        mode: Mode = "ideal",
    ) -> None:
        self.device, self.graph, self.mode = device, graph, mode
        self._profiles = profiles
        self.runs: list[tuple[Phase, int, int]] = []
        self.weights = {name for name, info in graph.inputs.items() if -1 not in info.shape}
        aliases = graph.cache_outputs
        self.tensors = tuple(
            PlanTensor(
                name=info.name,
                is_input=info.name in graph.inputs,
                shape=info.shape,
                itemsize=STORED[info.dtype].itemsize,
                aliases=aliases.get(info.name),
            )
            for info in (*graph.inputs.values(), *graph.outputs.values())
        )

    def max_shape(self, name: str, phase: Phase) -> tuple[int, ...]:
        rows, tokens, logits = self._profiles[phase]
        if name in self.graph.cache_outputs.values():
            return (rows, *self.graph.inputs[name].shape[1:])
        second = logits if name == "logits_rows" else tokens
        return (rows, second)[: len(self.graph.inputs[name].shape)]

    def context(self, phase: Phase) -> "StandInContext":
        return StandInContext(self, phase)

    def close(self) -> None:
        assert not self.device.closed, "a plan is closed before its device"


class StandInContext:
    """One profile of a StandInPlan (tensorrt_device.PlanContext)."""

    def __init__(self, plan: StandInPlan, phase: Phase) -> None:
        self._plan, self._phase = plan, phase
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> None:
        limit = self._plan.max_shape(name, self._phase)
        stated = self._plan.graph.inputs[name].shape
        assert len(shape) == len(limit), (name, shape, limit)
        for length, most, fixed in zip(shape, limit, stated, strict=True):
            assert 1 <= length <= most and fixed in (-1, length), (name, shape, limit)
        self._shapes[name] = tuple(shape)

    def set_tensor_address(self, name: str, address: int) -> None:
        assert address % ALIGNMENT == 0, f"{name} at {address:#x}"
        if name in self._plan.weights:
            assert name not in self._addresses, f"{name}: bound a second time"
        self._addresses[name] = address

    def execute(self) -> None:
        graph = self._plan.graph
        shapes = self._shapes | {name: graph.inputs[name].shape for name in self._plan.weights}
        inputs = {name: self._view(info, shapes[name]) for name, info in graph.inputs.items()}
        self._check(inputs)
        # The interpreter holds every floating type as float32, so a cache is evaluated in a copy.
        held = {n: x.to(HELD[graph.inputs[n].dtype]) for n, x in inputs.items()}
        outputs = evaluate(graph, held, self._plan.mode)
        for name, value in outputs.items():
            self._view(graph.outputs[name], tuple(value.shape)).copy_(value)
        rows, tokens = inputs["token_ids"].shape
        self._plan.runs.append((self._phase, rows, tokens))

    def _check(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Hold the step against what every plan of ours is promised."""
        rows, tokens = inputs["token_ids"].shape
        for output, cache in self._plan.graph.cache_outputs.items():
            assert self._addresses[output] == self._addresses[cache], f"{output} is not {cache}"
            assert inputs[cache].shape[0] == rows, f"{cache}: {inputs[cache].shape[0]} rows"
            max_seq_len = inputs[cache].shape[2]
        starts, lengths = inputs["write_indices"], inputs["kv_lens"]
        assert bool((starts >= 0).all()) and bool((starts + tokens <= max_seq_len).all()), starts
        assert torch.equal(lengths, starts + tokens), (starts, lengths)
        assert torch.equal(inputs["positions"], starts[:, None] + torch.arange(tokens))
        prompts = inputs.get("prompt_lens", lengths)
        assert bool((prompts >= 1).all()) and bool((prompts <= max_seq_len).all()), prompts
        wanted = inputs["logits_rows"]
        assert bool((wanted >= 0).all()) and bool((wanted < tokens).all()), wanted

    def _view(self, info: TensorInfo, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the memory a tensor is bound to, as a tensor of its type."""
        assert info.name in self._addresses, f"{info.name}: not bound"
        dtype = STORED[info.dtype]
        raw = self._plan.device.bytes_at(self._addresses[info.name], prod(shape) * dtype.itemsize)
        return torch.from_numpy(raw).view(dtype).reshape(shape)
