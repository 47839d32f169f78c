"""RoPE, KV write and paged attention kernels against the plugin's torch reference."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from llmc.plugins import native
from llmc.plugins.alibi import alibi_slopes
from llmc.plugins.attention import reference
from llmc.plugins.cpu_program import KINDS, TYPES, KvShape
from llmc.plugins.cpu_step import native_batch, step_integers
from llmc.plugins.rope import rope_tables
from llmc.runtime.batch import Batch
from tests.plugins.kernels_cpu import INSTRUCTION_SETS, team
from tests.runtime.cpu_engines import ragged

LENGTHS = (100, 37, 5)
CHUNKS = ((70, 20, 0), (1, 16, 4), (28, 0, 1), (1, 1, 0))
NUM_BLOCKS = 12
KEY_TYPES = ("float32", "float16", "bfloat16", "int8", "float8_e4m3fn")
KV_SCALES = {"int8": 0.03, "float8_e4m3fn": 0.02}
KV_QUANTS = {"int8": "INT8", "float8_e4m3fn": "FP8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    num_heads: int
    num_kv_heads: int
    head_size: int
    rotary_dim: int
    sliding_window: int | None = None
    rope_style: str = "neox"
    alibi: dict[str, Any] | None = None
    softcap: float | None = None
    has_sinks: bool = False

    @property
    def sinks(self) -> npt.NDArray[np.float32] | None:
        draw = np.random.default_rng(2)
        return draw.standard_normal(self.num_heads).astype(np.float32) if self.has_sinks else None

    @property
    def columns(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_size

    @property
    def attrs(self) -> dict[str, Any]:
        return {
            "layer": 0,
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_size": self.head_size,
            "rope_style": self.rope_style,
            "rotary_dim": self.rotary_dim,
            "rotary_base": 10000.0,
            "rotary_scaling": None,
            "max_position_embeddings": 128,
            "sliding_window": self.sliding_window,
            "alibi": self.alibi,
            "softcap": self.softcap,
            "scale": self.head_size**-0.5,
        }


SHAPES = {
    "smollm2": Shape(num_heads=9, num_kv_heads=3, head_size=64, rotary_dim=64),
    "mha": Shape(num_heads=2, num_kv_heads=2, head_size=32, rotary_dim=32),
    "mqa": Shape(num_heads=8, num_kv_heads=1, head_size=128, rotary_dim=128),
    "group_of_8": Shape(num_heads=64, num_kv_heads=8, head_size=32, rotary_dim=32),
    "odd_head_size": Shape(num_heads=4, num_kv_heads=2, head_size=80, rotary_dim=80),
    "partial_rotary": Shape(num_heads=2, num_kv_heads=1, head_size=96, rotary_dim=24),
    "tiny_head": Shape(num_heads=3, num_kv_heads=1, head_size=10, rotary_dim=10),
    "window": Shape(num_heads=4, num_kv_heads=2, head_size=64, rotary_dim=64, sliding_window=40),
    "short_window": Shape(
        num_heads=3, num_kv_heads=1, head_size=32, rotary_dim=32, sliding_window=3
    ),
    "pairs": Shape(num_heads=4, num_kv_heads=4, head_size=64, rotary_dim=16, rope_style="gptj"),
    "no_rope": Shape(num_heads=2, num_kv_heads=2, head_size=40, rotary_dim=0, rope_style="none"),
    "alibi": Shape(
        num_heads=4,
        num_kv_heads=2,
        head_size=48,
        rotary_dim=0,
        rope_style="none",
        # Not a power of two, and not the first rank's.
        alibi={"first_head": 6, "total_heads": 12, "scaled": False},
    ),
    "falcon": Shape(
        num_heads=6,
        num_kv_heads=1,
        head_size=64,
        rotary_dim=0,
        rope_style="none",
        alibi={"first_head": 0, "total_heads": 6, "scaled": True},
    ),
    "softcap": Shape(num_heads=4, num_kv_heads=2, head_size=64, rotary_dim=64, softcap=0.7),
    "sinks": Shape(
        num_heads=8, num_kv_heads=2, head_size=64, rotary_dim=64, sliding_window=9, has_sinks=True
    ),
    "large_head": Shape(num_heads=2, num_kv_heads=1, head_size=512, rotary_dim=512),
}


class PagedAttention:
    """The two kernels over a pool of their own, which starts full of what must not be read."""

    def __init__(self, instruction_set: str, shape: Shape, type: str) -> None:
        self.team, self.shape = team(instruction_set), shape
        kv = KvShape(
            num_layers=1,
            num_kv_heads=shape.num_kv_heads,
            head_size=shape.head_size,
            tokens_per_block=32,
            dtype=type,
        )
        # Every element NaN in each type; the padding of head sizes is zero as the engine leaves it.
        self.pool = np.full(NUM_BLOCKS * kv.block_bytes, 0xFF, np.uint8)
        if shape.head_size % 32:
            self.pool[:] = 0
        self.slopes = None if shape.alibi is None else alibi_slopes(shape.alibi, shape.num_heads)
        self.sinks = shape.sinks
        self.tables = rope_tables(
            rotary_base=10000.0,
            rotary_dim=shape.rotary_dim,
            rotary_scaling=None,
            max_position_embeddings=128,
            num_positions=128,
        )
        self.ops = [self._op("rope_kv", type), self._op("attention", type)]

    def _op(self, kind: str, type: str) -> native.NativeOp:
        shape = self.shape
        op = native.NativeOp(kind=KINDS[kind], type=TYPES[type], input=0, input2=-1, output=1)
        op.dim[:5] = (
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_size,
            shape.rotary_dim,
            32,
        )
        factor, kv_scale = shape.head_size**-0.5, KV_SCALES.get(type, 1.0)
        if kind == "rope_kv":
            op.dim[5] = ("none", "neox", "gptj").index(shape.rope_style)
            op.param[0] = 1 / kv_scale
            arrays: tuple[npt.NDArray[Any] | None, ...] = (*self.tables, self.pool)
        else:
            op.dim[5] = shape.sliding_window or 0
            if shape.alibi is not None:
                op.dim[6] = 1 + shape.alibi["scaled"]
            op.param[:4] = (factor * kv_scale, kv_scale, shape.softcap or 0.0, factor)
            arrays = (self.slopes, self.sinks, self.pool)
        for place, array in enumerate(arrays):
            op.tensor[place] = None if array is None else array.ctypes.data
        return op

    def __call__(self, qkv: npt.NDArray[np.float32], batch: Batch) -> npt.NDArray[np.float32]:
        out = np.full(
            (qkv.shape[0], self.shape.num_heads * self.shape.head_size), np.nan, np.float32
        )
        qkv = qkv.copy()
        integers = step_integers(batch)
        step = native_batch(batch, integers)
        self.team.run(self.ops, step, [qkv.ctypes.data, out.ctypes.data])
        return out


def steps_of(
    shape: Shape, chunks: Any = CHUNKS, lengths: Any = LENGTHS
) -> list[tuple[Batch, npt.NDArray[np.float32], list[tuple[int, int]]]]:
    """Return (batch, qkv [T, columns], rows) per step; a token's qkv does not depend on the cut."""
    draw = np.random.default_rng(5)
    values = [draw.standard_normal((n, shape.columns)).astype(np.float32) for n in LENGTHS]
    sequences = [range(length) for length in lengths]
    steps = []
    for batch, rows in ragged(sequences, chunks, seed=3):
        steps.append((batch, np.stack([values[s][p] for s, p in rows]), rows))
    return steps


def gather(attention: PagedAttention, steps: Any) -> dict[tuple[int, int], npt.NDArray[Any]]:
    out = {}
    for batch, qkv, rows in steps:
        for row, values in zip(rows, attention(qkv, batch), strict=True):
            out[row] = values
    return out


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("type", KEY_TYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_equals_reference(instruction_set: str, type: str, name: str) -> None:
    """In ragged steps of prefill chunks and decode tokens, over scattered blocks."""
    shape = SHAPES[name]
    cache = torch.zeros(1, 2, NUM_BLOCKS, 32, shape.num_kv_heads, shape.head_size)
    attention = PagedAttention(instruction_set, shape, type)
    for batch, qkv, _ in steps_of(shape):
        expected = reference.evaluate(
            torch.from_numpy(qkv),
            kv_cache=cache,
            positions=torch.from_numpy(batch.positions),
            query_start=torch.from_numpy(batch.query_start),
            context_lens=torch.from_numpy(batch.context_lens),
            block_tables=torch.from_numpy(batch.block_tables),
            prompt_lens=torch.from_numpy(batch.prompt_lens),
            kv_quant=KV_QUANTS.get(type, "none"),
            kv_cache_scaling_factor=torch.tensor([KV_SCALES.get(type, 1.0)]),
            sinks=None if shape.sinks is None else torch.from_numpy(shape.sinks),
            **shape.attrs,
        ).numpy()
        # Keys and values rounded to the cache's type; scores are of the order of 1. The reference
        # rounds to one byte too: what is left is a key that falls between two steps.
        atol = {"float16": 4e-3, "bfloat16": 3e-2, "int8": 4e-3, "float8_e4m3fn": 2e-2}.get(
            type, 1e-5
        )
        np.testing.assert_allclose(attention(qkv, batch), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("type", KEY_TYPES)
@pytest.mark.parametrize("name", ("smollm2", "mqa", "odd_head_size", "window", "alibi", "sinks"))
def test_token_does_not_depend_on_its_batch(instruction_set: str, type: str, name: str) -> None:
    """Bit for bit: in a mix, in one piece, and token by token."""
    shape = SHAPES[name]
    mixed = gather(PagedAttention(instruction_set, shape, type), steps_of(shape))
    whole = gather(
        PagedAttention(instruction_set, shape, type),
        steps_of(shape, chunks=((100, 0, 0), (0, 37, 0), (0, 0, 5))),
    )
    tokens = [(1, 0, 0)] * 100
    single = gather(PagedAttention(instruction_set, shape, type), steps_of(shape, chunks=tokens))
    for row, values in mixed.items():
        np.testing.assert_array_equal(values, whole[row])
    for row, values in single.items():
        np.testing.assert_array_equal(values, whole[row])


@pytest.mark.parametrize("type", ("int8", "float8_e4m3fn"))
def test_one_byte_keys_saturate(type: str) -> None:
    """What is out of range becomes the largest: 127 or 448 steps, never the other sign or NaN."""
    shape = SHAPES["mha"]
    batch, qkv, _ = steps_of(shape)[0]
    values = qkv.copy()
    values[:, 2 * shape.num_heads * shape.head_size :] = 1e4
    found = PagedAttention("portable", shape, type)(values, batch)
    largest = KV_SCALES[type] * (127 if type == "int8" else 448)
    np.testing.assert_allclose(found, largest, rtol=1e-5)


def test_fp16_keys_saturate() -> None:
    """A key fp16 cannot hold becomes its largest number: no infinity, no NaN afterwards."""
    shape = SHAPES["mha"]
    batch, qkv, _ = steps_of(shape)[0]
    assert np.isfinite(PagedAttention("portable", shape, "float16")(qkv * 1e5, batch)).all()
