"""Every quantized linear on the CPU against its torch reference, on every instruction set."""

from typing import Any

import numpy as np
import pytest
import torch

from llmc.errors import UnsupportedError
from llmc.plugins.linear import reference
from llmc.quant import FORMATS
from llmc.quant.format import load_format
from tests.plugins.kernels_cpu import INSTRUCTION_SETS, Float32Array
from tests.plugins.quantized_linears import LAYOUT, QuantizedLinear, choice_for, plain, stored

NUM_IN, NUM_OUT = 576, 192
"""Several chunks of K, 256 or 128, and a last one that is not whole."""


def draw(*shape: int, seed: int = 0) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make(algo: str, *, module: str = "fc", modules: int = 1) -> QuantizedLinear:
    num_in = NUM_IN
    x = draw(64, num_in, seed=1)
    layout = LAYOUT if load_format(algo).needs_layout else None
    choice = choice_for(algo, num_in, module=module, x=x)
    weights = [draw(NUM_OUT, num_in, seed=place) / np.sqrt(num_in) for place in range(modules)]
    tensors = [stored(algo, weight, choice, layout) for weight in weights]
    gated = {"fused_activation": "silu", "fused_half": 0} if modules == 2 else {}
    return QuantizedLinear(
        algo,
        tensors,
        in_features=num_in,
        out_features=modules * NUM_OUT,
        layout=layout,
        attrs=gated,
    )


def expected(linear: QuantizedLinear, x: Float32Array) -> Float32Array:
    call = linear.call
    weights: Any = {
        role: [linear.tensors[name] for name in names] for role, names in call.weights.items()
    }
    attrs: Any = {key: value for key, value in call.attrs.items() if not key.startswith("fused")}
    y = reference.evaluate(torch.from_numpy(x), **weights, **attrs)
    if "fused_activation" in call.attrs:
        half = y.shape[1] // 2
        y = torch.nn.functional.silu(y[:, :half]) * y[:, half:]
    found: Float32Array = y.numpy()
    return found


def tolerance(algo: str, instruction_set: str) -> float:
    """Absolute, for outputs of about 1: as in test_linear_cpu; rounded inputs lose nothing more."""
    if algo == "W8A16":
        return 2e-2 if instruction_set.endswith("amx") else 5e-4
    # Rows are rounded to 16 bits beside INT4 weights.
    return 5e-4 if algo.startswith("W4A16") else 2e-5


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("algo", FORMATS)
def test_equals_reference(algo: str, instruction_set: str) -> None:
    for module in ("fc", "dense"):
        linear = make(algo, module=module)
        for count in (1, 2, 7, 33):
            x = draw(count, NUM_IN, seed=count)
            found, wanted = linear(instruction_set, x), expected(linear, x)
            assert wanted.std() > 0.3
            np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance(algo, instruction_set))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("algo", FORMATS)
def test_row_does_not_depend_on_its_batch(algo: str, instruction_set: str) -> None:
    linear = make(algo)
    x = draw(33, NUM_IN, seed=2)
    whole = linear(instruction_set, x)
    for start, stop in ((0, 1), (5, 7), (10, 13), (3, 8), (7, 13), (1, 15), (2, 33)):
        np.testing.assert_array_equal(linear(instruction_set, x[start:stop]), whole[start:stop])


@pytest.mark.parametrize("algo", FORMATS)
def test_gate_and_up_are_one_product(algo: str) -> None:
    linear = make(algo, modules=2)
    x = draw(9, NUM_IN, seed=3)
    for instruction_set in INSTRUCTION_SETS:
        found = linear(instruction_set, x)
        atol = 5 * tolerance(algo, instruction_set)
        np.testing.assert_allclose(found, expected(linear, x), rtol=0, atol=atol)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_integers_are_multiplied_exactly(instruction_set: str) -> None:
    """Largest INT8 weights and inputs of both signs: sums of groups do not round."""
    weight = np.where(draw(32, 1024) > 0, 127, -127).astype(np.float32)
    x = np.where(draw(3, 1024, seed=1) > 0, 127, -127).astype(np.float32)
    algo = "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"
    choice = choice_for(algo, 1024, x=x)
    linear = QuantizedLinear(
        algo, [stored(algo, weight, choice)], in_features=1024, out_features=32
    )
    np.testing.assert_array_equal(linear(instruction_set, x), x @ weight.T)


@pytest.mark.parametrize("algo", ("W8A16", "W4A16"))
def test_plain_checkpoint_is_rounded_at_build(algo: str) -> None:
    """And gives what the same weight gives that was rounded before."""
    weight = (draw(NUM_OUT, NUM_IN) / np.sqrt(NUM_IN)).astype(np.float16).astype(np.float32)
    x = draw(4, NUM_IN, seed=1)
    choice = choice_for(algo, NUM_IN, x=x)
    tensors = stored(algo, weight, choice, LAYOUT)
    before = QuantizedLinear(
        algo, [tensors], in_features=NUM_IN, out_features=NUM_OUT, layout=LAYOUT
    )
    np.testing.assert_array_equal(plain(algo, weight)("portable", x), before("portable", x))


@pytest.mark.parametrize(
    "algo", ("FP8_PER_CHANNEL_PER_TOKEN", "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN")
)
def test_rows_of_zeros_and_outliers(algo: str) -> None:
    linear = make(algo)
    x = draw(4, NUM_IN, seed=4)
    x[1] = 0
    x[2, 3] = 5000.0
    for instruction_set in INSTRUCTION_SETS:
        found = linear(instruction_set, x)
        assert not found[1].any()
        np.testing.assert_allclose(found, expected(linear, x), rtol=1e-5, atol=2e-3)


def test_modules_that_scale_one_input_differently_are_refused() -> None:
    x = draw(8, 128, seed=1)
    tensors = [
        stored("FP8", draw(32, 128), choice_for("FP8", 128, x=scaled)) for scaled in (x, 2 * x)
    ]
    with pytest.raises(UnsupportedError, match="scale their input differently"):
        QuantizedLinear("FP8", tensors, in_features=128, out_features=64)
