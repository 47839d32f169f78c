"""The small kernels against numpy: embedding, rms_norm, gated_activation, add, gather_last."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llmc.plugins import native
from tests.plugins.kernels_cpu import INSTRUCTION_SETS, run

COLUMNS = (1, 7, 64, 577)
# More rows than one task takes for the widest.
ROWS = (1, 5, 40)

every_set = pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
every_width = pytest.mark.parametrize("columns", COLUMNS)
every_count = pytest.mark.parametrize("count", ROWS)


def draw(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def empty(*shape: int) -> Any:
    return np.full(shape, np.nan, np.float32)


@every_set
@every_width
@every_count
def test_rms_norm(instruction_set: str, columns: int, count: int) -> None:
    x, weight = draw(count, columns), draw(columns)
    found = run(
        instruction_set,
        "rms_norm",
        inputs=[x],
        output=empty(count, columns),
        tensors=[weight],
        dims=(columns,),
        params=(1e-5,),
    )
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)


@every_set
@every_width
@every_count
def test_gated_activation(instruction_set: str, columns: int, count: int) -> None:
    x = 10 * draw(count, 2 * columns)
    x[0, 0] = -200.0  # silu of it is zero, not NaN
    found = run(
        instruction_set,
        "gated_activation",
        inputs=[x],
        output=empty(count, columns),
        dims=(columns,),
    )
    wide = x.astype(np.float64)
    expected = wide[:, :columns] / (1 + np.exp(-wide[:, :columns])) * wide[:, columns:]
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


@every_set
@every_width
@every_count
def test_add(instruction_set: str, columns: int, count: int) -> None:
    a, b = draw(count, columns), draw(count, columns) * 3
    found = run(
        instruction_set, "add", inputs=[a, b], output=empty(count, columns), dims=(columns,)
    )
    np.testing.assert_array_equal(found, a + b)


@every_set
@pytest.mark.parametrize("type", ("float32", "float16", "bfloat16"))
def test_embedding(instruction_set: str, type: str) -> None:
    """Rows outside this rank's share of the vocabulary are zero."""
    dtype = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[type]
    table = draw(10, 33).astype(dtype)
    # Denormals of half precision too.
    table[3] = 3e-7
    ids = np.array([4, 5, 14, 15, 8, 7], np.int32)
    batch = native.NativeBatch(num_tokens=6, token_ids=ids.ctypes.data)
    found = run(
        instruction_set,
        "embedding",
        inputs=[],
        output=empty(6, 33),
        tensors=[table],
        dims=(33, 5, 10),
        type=type,
        batch=batch,
    )
    zeros = np.zeros(33, np.float32)
    expected = [zeros, table[0], table[9], zeros, table[3], table[2]]
    np.testing.assert_array_equal(found, np.stack(expected, dtype=np.float32, casting="unsafe"))


@every_set
def test_gather_last(instruction_set: str) -> None:
    hidden, rows = draw(9, 600), np.array([0, 4, 8], np.int32)
    batch = native.NativeBatch(num_tokens=9, num_logits=3, logits_rows=rows.ctypes.data)
    found = run(
        instruction_set,
        "gather_last",
        inputs=[hidden],
        output=empty(3, 600),
        dims=(600,),
        batch=batch,
    )
    np.testing.assert_array_equal(found, hidden[rows])
