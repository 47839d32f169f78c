"""The linear kernel against float64 numpy, on every instruction set this machine can run."""

import numpy as np
import pytest

from llmc.plugins.activation.spec import ACTIVATIONS
from llmc.plugins.cpu_program import FLAG_INTEGER_ROWS
from llmc.plugins.panels import pack_panels
from tests.plugins.kernels_cpu import INSTRUCTION_SETS, Float32Array, Linear, run

TYPES = ("float32", "float16", "bfloat16", "int8")
# Whole panels, odd sizes, several chunks of K (256) and of tiles (512), fewer columns than a panel.
SHAPES = ((64, 96), (70, 41), (577, 33), (1100, 17))
ROWS = (1, 2, 3, 4, 5, 6, 7, 13, 33)


def make(num_in: int, num_out: int, seed: int = 0) -> Float32Array:
    weight = np.random.default_rng(seed).standard_normal((num_out, num_in))
    scaled: Float32Array = (weight / np.sqrt(num_in)).astype(np.float32)
    return scaled


def rows(count: int, num_in: int) -> Float32Array:
    return np.random.default_rng(count).standard_normal((count, num_in)).astype(np.float32)


def tolerance(instruction_set: str, type: str) -> float:
    """Absolute, for outputs of about 1: the rounding of the activations, else of float32 sums.

    AMX rounds activations to bf16: 2^-9 of each, averaged over the sum. Integers round them to
    2^-16 of the largest of a group, a few standard deviations.
    """
    if type in ("bfloat16", "int8") and instruction_set.endswith("amx"):
        return 2e-2
    return 5e-4 if type == "int8" else 1e-5


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_numpy(instruction_set: str, type: str, shape: tuple[int, int]) -> None:
    num_in, num_out = shape
    linear = Linear(make(num_in, num_out), type)
    for count in ROWS:
        x = rows(count, num_in)
        found = linear(instruction_set, x)
        atol = tolerance(instruction_set, type)
        np.testing.assert_allclose(found, linear.expected(x), rtol=0, atol=atol)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("type", TYPES)
def test_row_does_not_depend_on_its_batch(instruction_set: str, type: str) -> None:
    """Bit for bit, whatever path the number of rows takes and wherever the row lies."""
    linear = Linear(make(577, 65), type)
    x = rows(33, 577)
    whole = linear(instruction_set, x)
    for start, stop in ((0, 1), (5, 7), (10, 13), (20, 24), (3, 8), (7, 13), (1, 15), (2, 33)):
        part = linear(instruction_set, np.ascontiguousarray(x[start:stop]))
        np.testing.assert_array_equal(part, whole[start:stop])


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("type", TYPES)
def test_more_rows_than_a_block(instruction_set: str, type: str) -> None:
    """Rows are cut into blocks of at most 192, or fewer when they are long."""
    linear = Linear(make(1100, 40), type)
    x = rows(401, 1100)
    found = linear(instruction_set, x)
    atol = tolerance(instruction_set, type)
    np.testing.assert_allclose(found, linear.expected(x), rtol=0, atol=atol)
    np.testing.assert_array_equal(linear(instruction_set, x[200:201].copy()), found[200:201])


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("gated", (False, True))
@pytest.mark.parametrize("count", (1, 9))
def test_epilogue(instruction_set: str, type: str, gated: bool, count: int) -> None:
    """Bias, gating of halves that are not whole panels, and the residual."""
    draw = np.random.default_rng(3).standard_normal
    num_out = 2 * 43
    bias = draw(num_out).astype(np.float32)
    linear = Linear(make(72, num_out), type, bias=bias, gated=gated)
    x = rows(count, 72)
    residual = draw((count, 43 if gated else num_out)).astype(np.float32)
    found = linear(instruction_set, x, residual)
    atol = 5 * tolerance(instruction_set, type)
    np.testing.assert_allclose(found, linear.expected(x, residual), rtol=0, atol=atol)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("half", (None, 0, 1))
def test_activations_in_the_epilogue(
    instruction_set: str, activation: str, half: int | None
) -> None:
    linear = Linear(
        make(72, 86), "float32", gated=half is not None, activation=activation, half=half or 0
    )
    x = rows(9, 72)
    np.testing.assert_allclose(linear(instruction_set, x), linear.expected(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_int8_extremes_do_not_overflow(instruction_set: str) -> None:
    """A whole group of -128 weights and largest inputs is the largest sum there can be."""
    linear = Linear(np.full((3, 512), -1.0, np.float32), "int8")
    assert linear.matrix.min() == -1.0
    x = np.full((7, 512), 3.0, np.float32)
    np.testing.assert_allclose(linear(instruction_set, x), -1536.0, rtol=1e-4)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_int8_of_zero_rows(instruction_set: str) -> None:
    linear = Linear(make(64, 5), "int8")
    assert not linear(instruction_set, np.zeros((8, 64), np.float32)).any()


def test_int8_keeps_small_inputs_beside_an_outlier() -> None:
    """One input 1000 times the others costs them bits, not their meaning."""
    linear = Linear(make(256, 64), "int8")
    x = rows(4, 256)
    x[:, 7] = 1000.0
    without = x.copy()
    without[:, 7] = 0.0
    found = linear("portable", x).astype(np.float64) - 1000.0 * linear.matrix[:, 7]
    np.testing.assert_allclose(found, linear.expected(without), rtol=0, atol=0.05)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("num_in", [32, 70, 96, 1100])
def test_bytes_times_bytes_are_exact(instruction_set: str, num_in: int) -> None:
    """Rows that are int8 beside int8 weights: what VNNI and AMX-INT8 are for. 128 is the corner."""
    generator = np.random.default_rng(num_in)
    weight = generator.integers(-128, 128, (41, num_in), np.int8)
    panels = pack_panels(weight)
    for count in ROWS:
        x = generator.integers(-128, 128, (count, num_in)).astype(np.float32)
        x[0] = -128
        found = run(
            instruction_set,
            "linear",
            inputs=[x],
            output=np.full((count, 41), np.nan, np.float32),
            tensors=[panels, None, None],
            dims=(num_in, 41, len(panels)),
            type="int8",
            flags=FLAG_INTEGER_ROWS,
        )
        wanted = x.astype(np.int64) @ weight.astype(np.int64).T
        # A group's sum is below 2^23, which float32 holds; sums of groups round to its last bits.
        np.testing.assert_allclose(found, wanted.astype(np.float32), rtol=2e-7, atol=2)
