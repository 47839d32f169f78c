"""What the slot engine needs of a device and of a plan on it; `tensorrt_gpu` has it on a GPU.

Addresses are plain integers, as TensorRT takes them, so that all above this border can run without
a GPU: a context that evaluates the network in host memory is driven in the same way.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy.typing as npt

Phase = Literal["context", "generation"]
"""Which optimization profile: one slot with a chunk of a prompt, or many with a token each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTensor:
    """An input or output of a plan. A length that a step chooses is -1.

    `aliases`: the input whose memory this output must be given.
    """

    name: str
    is_input: bool
    shape: tuple[int, ...]
    itemsize: int
    aliases: str | None = None


class PlanContext(Protocol):
    """A plan ready to run in one profile. The names of the verbs are TensorRT's."""

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> None: ...

    def set_tensor_address(self, name: str, address: int) -> None: ...

    def execute(self) -> None:
        """Run on the device's stream, after what was put there before; do not wait."""
        ...


class Device(Protocol):
    """Memory and one stream of work, in order."""

    @property
    def free_bytes(self) -> int: ...

    def allocate(self, num_bytes: int) -> int:
        """Return the address of memory aligned to 256 bytes, kept until `close`."""
        ...

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        """Copy a C-contiguous array to the device; it may be reused at once."""
        ...

    def download(self, array: npt.NDArray[Any], address: int) -> None:
        """Copy into a C-contiguous array, and wait for it."""
        ...

    def copy(self, target: int, source: int, num_bytes: int) -> None: ...

    def close(self) -> None: ...


class Plan(Protocol):
    """A plan loaded on a device."""

    @property
    def tensors(self) -> tuple[PlanTensor, ...]: ...

    def max_shape(self, name: str, phase: Phase) -> tuple[int, ...]:
        """Return the largest shape of an input in a profile."""
        ...

    def context(self, phase: Phase) -> PlanContext: ...

    def close(self) -> None: ...
