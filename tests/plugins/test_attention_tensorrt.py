"""The TensorRT lowering of attention against the plugin's torch reference, slot by slot."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from llmc.plugins.attention import reference
from llmc.plugins.graph import OpCall
from tests.plugins.lowered_tensorrt import Float32Array, LoweredOp

MAX_SEQ_LEN, SLOTS = 64, 2
ROPE = {"rope_style": "neox", "rotary_dim": 16}
NO_ROPE = {"rope_style": "none", "rotary_dim": 0}
ALIBI = {"first_head": 4, "total_heads": 12, "scaled": False}
"""Slopes of a second rank, of a number of heads that is not a power of two."""

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one_head": {"num_heads": 1, "num_kv_heads": 1},
    "few_heads": {"num_heads": 3, "num_kv_heads": 1},
    "window": {"sliding_window": 7},
    "softcap": {"softcap": 0.7},
    "alibi": {**NO_ROPE, "alibi": ALIBI},
    "alibi_window": {**NO_ROPE, "alibi": ALIBI, "sliding_window": 7},
    "alibi_few_heads": {**NO_ROPE, "alibi": ALIBI, "num_heads": 2, "num_kv_heads": 2},
    "falcon": {**NO_ROPE, "alibi": ALIBI | {"scaled": True}},
    "sinks": {"sinks": True},
    "sinks_window": {"sinks": True, "sliding_window": 7},
    "sinks_few_heads": {"sinks": True, "num_heads": 2, "num_kv_heads": 1},
    "sinks_softcap": {"sinks": True, "softcap": 0.7},
    "dynamic": {
        "rotary_scaling": {"rope_type": "dynamic", "factor": 4.0},
        "max_position_embeddings": 24,
    },
    "longrope": {
        "rotary_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0 + 0.25 * i for i in range(8)],
            "long_factor": [1.0 + i for i in range(8)],
            "original_max_position_embeddings": 24,
        },
    },
    "pairs": {"rope_style": "gptj", "rotary_dim": 8},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One op: its attributes, and the sinks of its heads if it has any."""

    attrs: dict[str, Any]
    sinks: Float32Array | None

    @classmethod
    def make(cls, *, sinks: bool = False, **changes: Any) -> "Attention":
        attrs: dict[str, Any] = {
            "layer": 0,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_size": 16,
            **ROPE,
            "rotary_base": 100.0,
            "rotary_scaling": None,
            "max_position_embeddings": MAX_SEQ_LEN,
            "sliding_window": None,
            "alibi": None,
            "softcap": None,
            "kv_quant": "none",
            "scale": 0.3,
        } | changes
        drawn = np.random.default_rng(2).standard_normal(attrs["num_heads"]).astype(np.float32)
        return cls(attrs=attrs, sinks=drawn if sinks else None)

    @property
    def columns(self) -> int:
        heads: int = self.attrs["num_heads"] + 2 * self.attrs["num_kv_heads"]
        size: int = self.attrs["head_size"]
        return heads * size

    def lowered(self, directory: Path, num_slots: int = SLOTS) -> LoweredOp:
        call = OpCall(
            plugin="attention",
            name="it",
            inputs=("qkv",),
            outputs=("context",),
            attrs=self.attrs,
            weights={} if self.sinks is None else {"sinks": ("it.sinks",)},
        )
        return LoweredOp(
            call,
            {"qkv": self.columns},
            directory=directory,
            tensors={} if self.sinks is None else {"it.sinks": self.sinks},
            max_seq_len=MAX_SEQ_LEN,
            num_slots=num_slots,
        )

    def reference(self, qkv: Float32Array, prompt_len: int = 0) -> Float32Array:
        """Return the context of one sequence [S, columns] in one piece."""
        length, attrs = qkv.shape[0], self.attrs
        cache = torch.zeros(1, 2, 1, length, attrs["num_kv_heads"], attrs["head_size"])
        found = reference.evaluate(
            torch.from_numpy(qkv),
            kv_cache=cache,
            positions=torch.arange(length),
            query_start=torch.tensor([0, length]),
            context_lens=torch.tensor([length]),
            block_tables=torch.tensor([[0]]),
            prompt_lens=torch.tensor([prompt_len]),
            sinks=None if self.sinks is None else torch.from_numpy(self.sinks),
            **attrs,
        )
        result: Float32Array = found.numpy()
        return result


def draw(attention: Attention, length: int, seed: int) -> npt.NDArray[np.float32]:
    shape = (length, attention.columns)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_equals_reference(name: str, tmp_path: Path) -> None:
    """Two slots with a chunk of 20, one further on; then both token by token to the last place.

    Prompts end after the chunk; angles that change with a length do from 25 on.
    """
    attention = Attention.make(**CASES[name])
    lowered = attention.lowered(tmp_path)
    lengths = (MAX_SEQ_LEN - 9, MAX_SEQ_LEN)
    texts = [draw(attention, length, seed) for seed, length in enumerate(lengths)]
    starts, prompt_lens = np.array([0, 9]), np.array([20, 29])
    found: list[list[Float32Array]] = [[], []]
    # A second chunk reads what the first one wrote; the first slot writes nothing of use yet.
    lowered({"qkv": np.stack([texts[0][:9], texts[1][:9]])}, [0, 0], prompt_lens)
    for count in (20, *[1] * 35):
        rows = [text[start : start + count] for text, start in zip(texts, starts, strict=True)]
        step = lowered({"qkv": np.stack(rows)}, starts, prompt_lens)
        for parts, values in zip(found, step, strict=True):
            parts.append(values)
        starts = starts + count
    assert starts.tolist() == list(lengths)
    for text, parts, first, prompt in zip(texts, found, (0, 9), prompt_lens, strict=True):
        wanted = attention.reference(text, prompt)[first:]
        np.testing.assert_allclose(np.concatenate(parts), wanted, rtol=0, atol=2e-6)


def test_slopes_of_other_heads_show(tmp_path: Path) -> None:
    """Those of rank 0 on rank 1 are the likeliest mistake."""
    right = Attention.make(**CASES["alibi"])
    wrong = Attention.make(**CASES["alibi"] | {"alibi": ALIBI | {"first_head": 0}})
    text = draw(right, 40, 0)
    found = wrong.lowered(tmp_path, num_slots=1)({"qkv": text[None]})[0]
    assert np.abs(found - right.reference(text)).max() > 0.1
