"""What every format must keep, tested on the day its line is added."""

import numpy as np
import pytest

from llmc import lookup
from llmc.quant import FORMATS
from llmc.quant.format import QuantFormat


def load(algo: str) -> QuantFormat:
    module = lookup.load(FORMATS, algo, package="llmc.quant", kind="quantization")
    assert isinstance(module.FORMAT, QuantFormat)
    return module.FORMAT


@pytest.mark.parametrize("algo", FORMATS)
def test_a_format_goes_by_its_name(algo: str) -> None:
    assert load(algo).algo == algo


@pytest.mark.parametrize("algo", FORMATS)
def test_dequantizing_undoes_quantizing_within_a_step(algo: str) -> None:
    form = load(algo)
    weight = np.random.default_rng(3).standard_normal((24, 256)).astype(np.float32)
    values, scale = form.quantize(weight)
    back = form.dequantize(values, scale)
    assert back.shape == weight.shape and back.dtype == np.float32
    # A step is the scale, of whatever shares it: the largest scale bounds them all.
    assert np.abs(back - weight).max() <= scale.max() * 1.0001


@pytest.mark.parametrize("algo", FORMATS)
def test_quantizing_what_was_dequantized_changes_nothing(algo: str) -> None:
    form = load(algo)
    weight = np.random.default_rng(4).standard_normal((24, 256)).astype(np.float32)
    weight[:, 0] = -5  # the largest magnitude at the exact end of the range
    values, scale = form.quantize(weight)
    again, scale_again = form.quantize(form.dequantize(values, scale))
    np.testing.assert_array_equal(values, again)
    np.testing.assert_allclose(scale, scale_again, rtol=1e-6)
