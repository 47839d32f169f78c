"""TensorRT-LLM's rank algebra: which rank holds which slice, without processes or tensors.

Source: NVIDIA/TensorRT-LLM tensorrt_llm/mapping.py (0.17): rank = pp_rank * tp_size * cp_size +
cp_rank * tp_size + tp_rank; moe_tp * moe_ep = tp; moe_ep_rank = tp_rank % ep, moe_tp_rank =
tp_rank // ep.
"""

from dataclasses import dataclass, replace
from typing import Any

from llmc.errors import UnsupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """Sizes of each kind of parallelism and, of one process, its rank."""

    tp_size: int = 1
    pp_size: int = 1
    cp_size: int = 1
    moe_tp_size: int | None = None
    moe_ep_size: int | None = None
    gpus_per_node: int = 8
    rank: int = 0

    def __post_init__(self) -> None:
        for name in ("tp_size", "pp_size", "cp_size"):
            if getattr(self, name) < 1:
                raise UnsupportedError(
                    f"mapping.{name}: {getattr(self, name)}, expected at least 1"
                )
        moe_ep = self.moe_ep_size or (self.tp_size // self.moe_tp_size if self.moe_tp_size else 1)
        moe_tp = self.moe_tp_size or self.tp_size // moe_ep
        if moe_tp * moe_ep != self.tp_size:
            raise UnsupportedError(
                f"mapping: moe_tp_size {moe_tp} * moe_ep_size {moe_ep} = {moe_tp * moe_ep},"
                f" expected tp_size {self.tp_size}"
            )
        object.__setattr__(self, "moe_ep_size", moe_ep)
        object.__setattr__(self, "moe_tp_size", moe_tp)
        assert 0 <= self.rank < self.world_size, (self.rank, self.world_size)

    @property
    def world_size(self) -> int:
        return self.tp_size * self.pp_size * self.cp_size

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tp_size

    @property
    def pp_rank(self) -> int:
        return self.rank // (self.tp_size * self.cp_size)

    @property
    def moe_tp(self) -> int:
        """Into how many slices each expert is cut."""
        assert self.moe_tp_size is not None
        return self.moe_tp_size

    @property
    def moe_ep(self) -> int:
        """Over how many ranks whole experts are dealt out."""
        assert self.moe_ep_size is not None
        return self.moe_ep_size

    @property
    def moe_ep_rank(self) -> int:
        return self.tp_rank % self.moe_ep

    @property
    def moe_tp_rank(self) -> int:
        return self.tp_rank // self.moe_ep

    @property
    def is_first_stage(self) -> bool:
        return self.pp_rank == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pp_rank == self.pp_size - 1

    def at(self, rank: int) -> "Mapping":
        """Return the same mapping as seen by `rank`."""
        return replace(self, rank=rank)

    def stage_layers(self, num_layers: int) -> range:
        """Return the global layer numbers of this rank's pipeline stage; sizes must divide."""
        if num_layers % self.pp_size:
            valid = [size for size in range(1, num_layers + 1) if num_layers % size == 0]
            raise UnsupportedError(
                f"mapping.pp_size: {self.pp_size} does not divide num_hidden_layers {num_layers}",
                hint=f"valid pp_size: {', '.join(map(str, valid))}",
            )
        per_stage = num_layers // self.pp_size
        return range(self.pp_rank * per_stage, (self.pp_rank + 1) * per_stage)

    def to_json(self) -> dict[str, Any]:
        """Return the `mapping` object of TensorRT-LLM's config.json."""
        return {
            "world_size": self.world_size,
            "gpus_per_node": self.gpus_per_node,
            "cp_size": self.cp_size,
            "tp_size": self.tp_size,
            "pp_size": self.pp_size,
            "moe_tp_size": self.moe_tp_size,
            "moe_ep_size": self.moe_ep_size,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Mapping":
        """Read config.json's `mapping`; unknown keys are ignored as TensorRT-LLM does."""
        known = ("tp_size", "pp_size", "cp_size", "moe_tp_size", "moe_ep_size", "gpus_per_node")
        return cls(**{name: data[name] for name in known if name in data})
