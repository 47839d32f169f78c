"""Rounding of single numbers, where halves and ends of ranges decide."""

import ml_dtypes
import numpy as np
import pytest

from llmc.quant import integers, nvfp4
from llmc.quant.format import Choice, load_format


def test_halves_away_from_zero_and_to_even() -> None:
    numbers = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997], np.float32)
    assert integers.half_away(numbers).tolist() == [1, 2, 3, -1, -2, 0]
    assert integers.half_even(numbers).tolist() == [0, 2, 2, 0, -2, 0]


@pytest.mark.parametrize("axis", [0, 1])
def test_nibbles_are_low_first_and_signed(axis: int) -> None:
    values = np.array([[1, -8], [-1, 7]], np.int8)
    packed = integers.pack_nibbles(values, axis)
    first, second = ((1, -1), (-8, 7)) if axis == 0 else ((1, -8), (-1, 7))
    wanted = [(low & 15) | ((high & 15) << 4) for low, high in (first, second)]
    assert packed.view(np.uint8).ravel().tolist() == wanted
    np.testing.assert_array_equal(integers.unpack_nibbles(packed, axis), values)


def test_e2m1_is_the_nearest_with_halves_to_even() -> None:
    grid = np.linspace(-7, 7, 2**12 + 1, dtype=np.float32)
    codes = nvfp4.to_e2m1(grid)
    magnitude = nvfp4.MAGNITUDES[codes & 7]
    ours = np.where(codes >= 8, -magnitude, magnitude)
    # An independent implementation, but for what is beyond the range.
    wanted = np.clip(grid, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(ours, wanted)


def test_nvfp4_scales_are_two_levels() -> None:
    form = load_format("NVFP4")
    weight = np.zeros((2, 32), np.float32)
    weight[0, :16], weight[1, 16:] = 6 * 448, 6 * 0.5
    tensors = form.quantize(weight, Choice(input_amax=6 * 448 * 2.0)).tensors
    assert tensors["weights_scaling_factor_2"] == 1
    assert tensors["activation_scaling_factor"] == 2
    assert tensors["weights_scaling_factor"].astype(np.float32).tolist() == [[448, 1], [1, 0.5]]
    assert tensors["weight"].tolist() == [[0x77] * 8 + [0] * 8, [0] * 8 + [0x77] * 8]


def test_gptq_zero_points_are_whole_and_in_range() -> None:
    form = load_format("W4A16_GPTQ")
    weight = np.random.default_rng(0).uniform(0.5, 1, (4, 128)).astype(np.float32)
    weight[1] *= -1
    elements = form.unpack(form.quantize(weight, Choice(dtype="float16")))
    assert elements.zero is not None
    zero_points = 8 - elements.zero / elements.scale
    np.testing.assert_allclose(zero_points[:2, 0], [0, 15], atol=0.01)


@pytest.mark.parametrize("algo", ["W4A16_AWQ", "W4A16_GPTQ"])
def test_a_clipped_group_uses_the_amax_given(algo: str) -> None:
    weight = np.linspace(-1, 1, 512, dtype=np.float32).reshape(4, 128)
    amax = np.full((4, 1), 0.5, np.float32)
    choice = Choice(dtype="float16", weight_amax=amax)
    form = load_format(algo)
    back = form.dequantize(form.quantize(weight, choice))
    assert np.abs(back).max() == pytest.approx(0.5 * 8 / 7, rel=1e-3)


def test_static_smoothquant_does_not_depend_on_the_output() -> None:
    form = load_format("W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN")
    weight = np.random.default_rng(1).standard_normal((16, 32)).astype(np.float32)
    backs = [
        form.dequantize(form.quantize(weight, Choice(input_amax=3.0, output_amax=amax)))
        for amax in (0.1, 100.0)
    ]
    np.testing.assert_allclose(backs[0], backs[1], rtol=1e-6)


def test_per_tensor_smoothquant_gives_q_k_and_v_a_scale_each() -> None:
    form = load_format("W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN")
    weight = np.ones((8, 4), np.float32) * np.array([1, 2, 2, 2, 3, 3, 4, 1])[:, None]
    choice = Choice(module="qkv", segments=(4, 2, 2))
    scale = form.quantize(weight, choice).tensors["per_channel_scale"]
    np.testing.assert_allclose(scale * 127, [[2, 2, 2, 2, 3, 3, 4, 4]], rtol=1e-6)
