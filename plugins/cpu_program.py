"""The CPU engine's program as data: kernel records, values and tensors, to JSON and back.

Shared by the lowerings that write it and the runtime that binds it to memory; no addresses here.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

KINDS: dict[str, int] = {
    "embedding": 0,
    "rms_norm": 1,
    "linear": 2,
    "rope_kv": 3,
    "attention": 4,
    "gated_activation": 5,
    "add": 6,
    "gather_last": 7,
    "round_rows": 8,
    "moe_routing": 9,
    "moe_group": 10,
    "moe_linear": 11,
    "moe_combine": 12,
    "sigmoid_gate": 13,
    "layer_norm": 14,
    "head_norm": 15,
    "qk_squares": 16,
    "wide_qk_norm": 17,
    "activation": 18,
    "position_embedding": 19,
    "logits_transform": 20,
    "clamp": 21,
    "mla_qkv": 22,
    "take_columns": 23,
}
"""Kernel → LlmcKind of plugins/csrc/abi.h."""

COLLECTIVES = ("allreduce", "allgather", "send", "recv")
"""Kinds that Python runs between two native segments."""

TYPES: dict[str, int] = {
    "float32": 0,
    "float16": 1,
    "bfloat16": 2,
    "int8": 3,
    "float8_e4m3fn": 4,
    "int4": 5,
    "float4_e2m1": 6,
}
"""Element type → LlmcType."""

FLAG_LOGITS_ROWS = 1
FLAG_GATED = 2
FLAG_INTEGER_ROWS = 4
FLAG_ROW_SCALES = 8
FLAG_FLOAT_ROWS = 16

KV_CACHE = "@kv_cache"
"""Stands in `CpuOp.tensors` for the KV pool of layer `CpuOp.layer`."""

Rows = Literal["T", "L"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuOp:
    """One kernel call. `dims`, `params` and `tensors` are what the kernel's source says they are.

    `outputs` has at most one value; an op that works in place or into the KV pool has none.
    `gated` to `float_rows` are flags of a linear (plugins/linear/csrc/linear.cpp), `group` and
    `peer` belong to collectives.
    """

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    type: str = "float32"
    gated: bool = False
    integer_rows: bool = False
    row_scales: bool = False
    float_rows: bool = False
    dims: tuple[int, ...] = ()
    params: tuple[float, ...] = ()
    tensors: tuple[str | None, ...] = ()
    layer: int | None = None
    group: tuple[int, ...] = ()
    peer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A step buffer: as many rows as there are tokens (T) or wanted logits (L)."""

    rows: Rows
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """The KV pool of one layer. `head_size` is padded to 32 in memory."""

    num_layers: int
    num_kv_heads: int
    head_size: int
    tokens_per_block: int
    dtype: str

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of one layer."""
        padded = -(-self.head_size // 32) * 32
        itemsize = {"float32": 4, "int8": 1, "float8_e4m3fn": 1}.get(self.dtype, 2)
        return 2 * self.num_kv_heads * self.tokens_per_block * padded * itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Ops in order. `output` is the logits, None on a rank that hands them on."""

    ops: tuple[CpuOp, ...]
    values: dict[str, Value]
    output: str | None
    kv: KvShape
    limits: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Program":
        """Raises: KeyError, TypeError or ValueError for anything `to_json` would not write."""
        ops = tuple(
            CpuOp(**{key: _frozen(value) for key, value in entry.items()}) for entry in data["ops"]
        )
        unknown = {op.kind for op in ops} - KINDS.keys() - set(COLLECTIVES)
        if unknown:
            raise ValueError(f"unknown ops {', '.join(sorted(unknown))}")
        return cls(
            ops=ops,
            values={name: Value(**value) for name, value in data["values"].items()},
            output=data["output"],
            kv=KvShape(**data["kv"]),
            limits=dict(data["limits"]),
        )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
