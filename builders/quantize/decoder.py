"""An unquantized decoder of which one layer at a time is in memory: what computes it, and where.

The network is `build_network`'s, so every architecture that can be built can be calibrated. On a
CPU the target's own kernels compute it (`kernels`), on CUDA the plugins' torch references
(builders.calibrate). A layer's weights are in memory only while it is loaded; the hidden states
between layers are the caller's.

Legend: T tokens of a chunk of whole sequences, H hidden_size. Everything is float32.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from llmc.builders.network import build_network
from llmc.builders.quantize.observers import Observer
from llmc.builders.quantize.site import Floats
from llmc.checkpoint import CheckpointConfig, Quantization
from llmc.mapping import Mapping as RankMapping
from llmc.plugins import native
from llmc.plugins.graph import OpCall

Int32s = npt.NDArray[np.int32]
Stored = Mapping[str, npt.NDArray[Any]]
ReadTensor = Callable[[str], npt.NDArray[Any]]
"""Name of a whole, unsplit checkpoint tensor → its values."""
ReadRows = Callable[[str, npt.NDArray[np.int64]], npt.NDArray[Any]]
"""The same, but only the rows asked for: an embedding is much larger than a calibration text."""


class Layer(Protocol):
    """One decoder layer in memory."""

    def weight(self, name: str) -> Floats:
        """Return a weight as float32."""
        ...

    def replace(self, name: str, values: Floats) -> None:
        """Let the layer go on with other values of a weight."""
        ...

    def quantized(self, linears: Sequence[OpCall], stored: Stored) -> "Layer":
        """Return this layer with `linears` in place of its ops of the same names.

        `stored` are the tensors that a checkpoint has of them; what a target quantizes at build is
        taken from the layer's own weights, which are shared.
        """
        ...

    def run(
        self, hidden: Floats, lengths: Sequence[int], observers: Mapping[str, Observer]
    ) -> Floats:
        """Return the hidden states [T, H] after the layer, for whole sequences of these lengths.

        `observers` are told of the ops they are named after.
        """
        ...

    def release(self) -> None:
        """Give up what only `run` needs; the next run makes it again."""
        ...


class Decoder(Protocol):
    """All of it. One layer is loaded at a time."""

    @property
    def parts(self) -> "Parts": ...

    def embed(self, token_ids: Int32s, lengths: Sequence[int]) -> Floats:
        """Return the hidden states [T, H] that enter the first layer."""
        ...

    def load(self, layer: int) -> Layer:
        """Read the weights of one layer."""
        ...

    def head(self, hidden: Floats) -> Floats:
        """Return the logits [T, vocab] of hidden states that leave the last layer."""
        ...

    def close(self) -> None:
        """Release threads; the decoder is unusable afterwards."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The calls of an unquantized, unsplit network, cut at its layers."""

    before: tuple[OpCall, ...]
    layers: tuple[tuple[OpCall, ...], ...]
    after: tuple[OpCall, ...]

    @classmethod
    def of(cls, config: CheckpointConfig) -> "Parts":
        """Cut the network of `config`; what follows the layers works on every token."""
        whole = replace(config, mapping=RankMapping(), quantization=Quantization(), layout=None)
        ops = build_network(whole, 0).ops
        layers = []
        for layer in range(config.arch.num_hidden_layers):
            prefix = f"transformer.layers.{layer}."
            layers.append(tuple(op for op in ops if op.name.startswith(prefix)))
        before = ops[: ops.index(layers[0][0])]
        after = ops[ops.index(layers[-1][-1]) + 1 :]
        (gather,) = (op for op in after if op.plugin == "gather_last")
        renamed = {gather.outputs[0]: gather.inputs[0]}
        after = tuple(
            replace(op, inputs=tuple(renamed.get(name, name) for name in op.inputs))
            for op in after
            if op is not gather
        )
        return cls(before=before, layers=tuple(layers), after=after)


def entering(ops: Sequence[OpCall]) -> str:
    """Return the one value that `ops` read and do not write."""
    written = {name for op in ops for name in op.outputs}
    (value,) = {name for op in ops for name in op.inputs} - written
    return value


@cache
def arithmetic() -> str:
    """Say what computes: "cuda", or the instruction set of the CPU kernels.

    Which one changes the last bits of what is recorded, so a calibration goes on only with its own.
    """
    if _has_cuda():
        return "cuda"
    return f"cpu {native.choose_instruction_set()}"


def open_decoder(config: CheckpointConfig, read: ReadTensor, read_rows: ReadRows) -> Decoder:
    """Return the decoder of `config`, on CUDA where torch has it, else on the CPU kernels."""
    if arithmetic() == "cuda":
        from llmc.builders.calibrate import TorchDecoder  # torch: only once it is needed

        return TorchDecoder(config, read, read_rows, device="cuda")
    from llmc.builders.quantize.kernels import KernelDecoder

    return KernelDecoder(config, read, read_rows)


def _has_cuda() -> bool:
    """Say whether torch has a GPU. Importing it takes a second, so a driver must be there first."""
    if find_spec("torch") is None:
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    from llmc.builders.calibrate import has_cuda

    return has_cuda()
