"""Rules as rows: what each kind of rule makes of a tensor, and reading it in pieces."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.arch import ModelArch, MoeArch
from llmc.builders import reading
from llmc.builders.families.rules import (
    Rule,
    add_one,
    fuse,
    grouped_qkv,
    interleaved_qkv,
    reorder,
    swapped_halves,
    transpose,
)
from llmc.builders.hf.reader import HfWeights
from llmc.checkpoint import Segment, TensorSpec
from llmc.errors import CheckpointError
from tests.goldens import golden

ARCH = ModelArch(
    architecture="X",
    hidden_size=6,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_size=2,
    intermediate_size=3,
    vocab_size=5,
    max_position_embeddings=4,
    rotary_embedding_dim=2,
    moe=MoeArch(num_experts=2, top_k=1, intermediate_size=3),
)


def ranges_of(rule: Rule, spec: TensorSpec) -> list[tuple[str, int, int]]:
    rows = rule.rows(spec, ARCH, lambda source: f"{source}.weight")
    return [(row.source, row.start, row.stop) for row in rows]


def spec(*shape: int, segments: tuple[Segment, ...] = (), axis: int | None = None) -> TensorSpec:
    return TensorSpec(name="m.weight", shape=shape, axis=axis, segments=segments)


def test_interleaved_heads_are_parted() -> None:
    found = [start // 2 for start, _ in interleaved_qkv(ARCH)]
    assert found == [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]


def test_grouped_heads_are_parted() -> None:
    # Two groups of two query heads, a key and a value of two rows each.
    assert [*grouped_qkv(ARCH)] == [(0, 4), (8, 12), (4, 6), (12, 14), (6, 8), (14, 16)]


def test_halves_are_swapped() -> None:
    rule = reorder("mlp.fc", "gate_up", swapped_halves)
    assert ranges_of(rule, spec(6, 6)) == [("gate_up.weight", 3, 6), ("gate_up.weight", 0, 3)]


def test_experts_are_stacked_from_a_tensor_each_or_one_for_all() -> None:
    three = Segment(count=3)
    stacked = spec(2, 6, 6, axis=1, segments=(three, three))
    each = fuse("mlp.fc", "experts.{expert}.up", "experts.{expert}.gate")
    assert ranges_of(each, stacked) == [
        ("experts.0.up.weight", 0, 3),
        ("experts.0.gate.weight", 0, 3),
        ("experts.1.up.weight", 0, 3),
        ("experts.1.gate.weight", 0, 3),
    ]
    (rows,) = Rule(target="mlp.fc", sources=("all",)).rows(stacked, ARCH, str)
    assert (rows.shape, rows.start, rows.stop) == ((2, 6, 6), 0, 12)


@pytest.fixture
def weights(tmp_path: Path) -> Any:
    stored = {
        "conv.weight": np.arange(24, dtype=np.float32).reshape(4, 6),
        "norm.weight": np.array([0.0, 0.5, -1.0], np.float32),
    }
    golden.write_safetensors(tmp_path / "model.safetensors", stored)
    opened = HfWeights.open(tmp_path)
    yield opened, stored
    opened.close()


@pytest.mark.parametrize("piece_bytes", [1, 40, 1 << 20])
def test_a_transposed_tensor_is_read_in_pieces(
    weights: Any, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PIECE_BYTES", piece_bytes)
    opened, stored = weights
    (rows,) = transpose("m", "conv").rows(spec(6, 4), ARCH, lambda source: f"{source}.weight")
    assert rows.shape == (4, 6)
    np.testing.assert_array_equal(
        reading.read_rows(opened, rows, "float32"), stored["conv.weight"].T
    )
    columns = [piece for _, piece in reading.read_pieces(opened, rows, "float32", slice(1, 3))]
    np.testing.assert_array_equal(np.concatenate(columns), stored["conv.weight"].T[:, 1:3])


def test_one_is_added_before_the_value_is_rounded(weights: Any) -> None:
    (rows,) = add_one("m", "norm").rows(spec(3), ARCH, lambda source: f"{source}.weight")
    found = reading.read_rows(weights[0], rows, "float16")
    assert found.dtype == np.float16 and found.tolist() == [1.0, 1.5, 0.0]


def test_a_bad_value_of_a_transposed_tensor_is_named_where_it_stands(tmp_path: Path) -> None:
    values = np.zeros((4, 6), np.float32)
    values[1, 5] = np.nan
    golden.write_safetensors(tmp_path / "model.safetensors", {"conv.weight": values})
    opened = HfWeights.open(tmp_path)
    (rows,) = transpose("m", "conv").rows(spec(6, 4), ARCH, lambda source: f"{source}.weight")
    with pytest.raises(CheckpointError, match=r"conv.weight: nan at \[1, 5\]"):
        reading.read_rows(opened, rows, "float32")
    opened.close()
