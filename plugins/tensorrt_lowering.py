"""What a plugin's TensorRT lowering may ask of the target, and what it must export.

Each plugins/<op>/tensorrt.py exports `unsupported(call, max_seq_len) -> list[str]`, every reason
this call cannot be lowered, and `lower(call, lowering)`, which sets the call's output values.
Nothing there imports TensorRT: layers are added through `Lowering.layers`, so that one lowering
serves TensorRT for RTX and TensorRT.

A value of T rows is a tensor [B, S, columns]: B slots of the batch, S tokens of each. One of L rows
is [B, L, columns], L wanted rows of each slot.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy.typing as npt

from llmc.plugins.tensorrt_layers import Layers

Tensor = Any
"""An ITensor of whichever TensorRT is used."""

MakeArray = Callable[[], npt.NDArray[Any]]


class Lowering(Protocol):
    """Access to one rank's checkpoint tensors and to the network being written."""

    @property
    def layers(self) -> Layers: ...

    @property
    def dtype(self) -> str:
        """Element type of activations and of unquantized weights."""
        ...

    @property
    def embeds(self) -> bool:
        """Whether weights have their values; if not, they are placeholders for a refit."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_seq_len(self) -> int:
        """Positions of a slot's KV cache."""
        ...

    def value(self, name: str) -> Tensor:
        """Return a value that was set, or the network's token_ids."""
        ...

    def set_value(self, name: str, tensor: Tensor) -> None: ...

    def batch_input(self, name: str) -> Tensor:
        """Return the network input of this name (builders/targets/tensorrt_network.INPUTS and
        INPUTS_IF_READ)."""
        ...

    def group_size(self, module: str) -> int:
        """Return how many inputs of a linear module share a scale, by the checkpoint's config."""
        ...

    def read(self, names: tuple[str, ...]) -> npt.NDArray[Any]:
        """Return checkpoint tensors, concatenated on the output axis; not when only shapes count:
        to be called inside a `make` alone."""
        ...

    def weight(self, name: str, shape: tuple[int, ...], dtype: str, make: MakeArray) -> Tensor:
        """Add a constant that a refit may replace; a second of the same name is the first.

        `make` returns its values: of `dtype` and `shape`, but for "int4" and "float4_e2m1", whose
        two elements to a byte are uint8 of half the last axis. It is called only when the values
        are wanted.
        """
        ...

    def shared(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Return what `make` added for the first op that asked for `name`."""
        ...

    def update_kv_cache(
        self, layer: int, keys: Tensor, values: Tensor, *, spare: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values [B, kv_heads, S, head_size] from each slot's write index on.

        Returns the whole caches, which are outputs of the network in the inputs' memory, of
        max_seq_len + `spare` positions.
        """
        ...

    def note(self, text: str) -> None:
        """Tell the person who builds of something that makes this op slower than it might be."""
        ...
