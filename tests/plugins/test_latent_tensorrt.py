"""The TensorRT lowerings of latent attention's own ops against the torch references."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llmc.plugins import graph
from llmc.plugins.graph import OpCall
from tests.plugins.lowered_tensorrt import LoweredOp

SIZES: dict[str, Any] = {"num_heads": 3, "nope_size": 24, "rope_size": 10}


def check(plugin: str, attrs: dict[str, Any], columns: dict[str, int], directory: Path) -> None:
    """Two slots of five tokens equal the reference, which knows only rows."""
    call = OpCall(
        plugin=plugin, name="it", inputs=tuple(columns), outputs=("y",), attrs=attrs, weights={}
    )
    draw = np.random.default_rng(0)
    inputs = {n: draw.standard_normal((2, 5, size), np.float32) for n, size in columns.items()}
    found = LoweredOp(call, columns, directory=directory)(inputs)
    rows = [torch.from_numpy(array.reshape(10, -1)) for array in inputs.values()]
    wanted = graph.part(plugin, "reference").evaluate(*rows, **attrs)
    np.testing.assert_array_equal(found.reshape(10, -1), wanted.numpy())


@pytest.mark.parametrize(("groups", "start", "count"), [(6, 3, 31), (6, 0, 37), (1, 5, 20)])
def test_take_columns(groups: int, start: int, count: int, tmp_path: Path) -> None:
    attrs = {"groups": groups, "group_size": 37, "start": start, "count": count}
    check("take_columns", attrs, {"x": groups * 37}, tmp_path)


@pytest.mark.parametrize("value_size", [20, 34])
def test_mla_qkv(value_size: int, tmp_path: Path) -> None:
    """Values of fewer columns than keys, which zeros fill up, and of as many."""
    columns = {"q": 3 * 34, "kv": 3 * (24 + value_size), "rope": 10}
    check("mla_qkv", SIZES | {"value_size": value_size}, columns, tmp_path)


def test_mla_qkv_says_which_values_are_too_wide() -> None:
    call = OpCall(
        plugin="mla_qkv",
        name="it",
        inputs=("q", "kv", "rope"),
        outputs=("y",),
        attrs=SIZES | {"value_size": 35},
        weights={},
    )
    (reason,) = graph.part("mla_qkv", "tensorrt").unsupported(call, 64)
    assert reason == "it: 35 columns of v, expected at most 34, as of k"
