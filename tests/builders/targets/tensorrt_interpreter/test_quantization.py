"""Quantize and Dequantize in every granularity; rounding to every small type."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from llmc.builders.targets.tensorrt_interpreter.numbers import (
    FP4_VALUES,
    to_e8m0,
    to_fp4,
    to_fp8,
    to_int4,
    to_int8,
)
from llmc.errors import UnsupportedError
from tests.builders.targets.tensorrt_interpreter.small_networks import (
    SmallNetwork,
    run_layer,
    trt,
)

RNG = torch.Generator().manual_seed(2)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=RNG)


def fp8_values() -> list[float]:
    """All finite numbers of E4M3, by the format's definition."""
    found = set()
    for code in range(256):
        sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
        if (exponent, mantissa) == (15, 7):  # NaN
            continue
        size = (
            (mantissa / 8) * 2.0**-6
            if exponent == 0
            else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        )
        found.add(-size if sign else size)
    return sorted(found)


def check_rounding(rounding: Any, values: list[float]) -> None:
    """Each value stays; between two neighbours the nearer wins; beyond the last, the last does."""
    grid = torch.tensor(values)
    assert torch.equal(rounding(grid), grid)
    for low, high in pairwise(values):
        middle, eps = (low + high) / 2, (high - low) / 1000
        near = rounding(torch.tensor([middle - eps, middle + eps]))
        assert near.tolist() == [low, high], (low, high)
    beyond = rounding(torch.tensor([values[0] * 4, values[-1] * 4]))
    assert beyond.tolist() == [values[0], values[-1]]


def test_rounding_goes_to_the_nearest_value() -> None:
    check_rounding(to_fp8, fp8_values())
    check_rounding(to_fp4, sorted(set(FP4_VALUES)))
    check_rounding(to_int8, [float(number) for number in range(-128, 128)])
    check_rounding(to_int4, [float(number) for number in range(-8, 8)])


def test_ties_go_to_even() -> None:
    assert to_int8(torch.tensor([0.5, 1.5, 2.5, -0.5])).tolist() == [0, 2, 2, 0]
    assert to_fp4(torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])).tolist() == [
        *(0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0)
    ]
    assert to_fp8(torch.tensor([17.0, 19.0])).tolist() == [16.0, 20.0]


def test_e8m0_is_the_next_power_of_two() -> None:
    assert to_e8m0(torch.tensor([1.0, 1.1, 0.3, 4.0])).tolist() == [1.0, 2.0, 0.5, 4.0]


@pytest.mark.parametrize(("dtype", "scale"), [("FP8", 0.01), ("INT8", 0.02)])
def test_per_tensor(dtype: str, scale: float) -> None:
    x = random(4, 8)

    def make(network: SmallNetwork, tensor: Any) -> Any:
        step = network.constant(torch.tensor(scale), "FLOAT")
        small = network.definition.add_quantize(tensor, step, getattr(trt.DataType, dtype))
        return network.definition.add_dequantize(small.get_output(0), step, trt.float32)

    rounding = {"FP8": to_fp8, "INT8": to_int8}[dtype]
    result = run_layer(make, (x, "FLOAT"))
    torch.testing.assert_close(result, rounding(x / scale) * scale)
    assert 0 < (result - x).abs().max() < scale * 16


@pytest.mark.parametrize("axis", [0, 1])
def test_per_channel(axis: int) -> None:
    numbers = torch.randint(-127, 128, (3, 5), generator=RNG).to(torch.int8)
    scales = random(numbers.shape[axis]).abs()

    def make(network: SmallNetwork) -> Any:
        weights = network.constant(numbers, "INT8")
        layer = network.definition.add_dequantize(
            weights, network.constant(scales, "FLOAT"), trt.float32
        )
        layer.axis = axis
        return layer

    wanted = numbers * (scales[:, None] if axis == 0 else scales)
    torch.testing.assert_close(run_layer(make), wanted)


@pytest.mark.parametrize("axis", [0, 1])
def test_int4_blocks(axis: int) -> None:
    """Two numbers to a byte, the first in the low half; a scale for each 4 along an axis."""
    numbers = torch.randint(-8, 8, (8, 8), generator=RNG)
    codes = (numbers & 15).to(torch.uint8).numpy()
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    scales = random(2, 8).abs() if axis == 0 else random(8, 2).abs()

    def make(network: SmallNetwork) -> Any:
        weights = network.constant(np.ascontiguousarray(packed), "INT4")
        steps = network.constant(scales.half(), "HALF")
        return network.definition.add_dequantize(weights, steps, trt.float16)

    wanted = numbers * scales.half().float().repeat_interleave(4, axis)
    torch.testing.assert_close(run_layer(make), wanted)


def test_a_zero_point_is_refused() -> None:
    def make(network: SmallNetwork) -> Any:
        weights = network.constant(torch.ones(4, dtype=torch.int8), "INT8")
        step = network.constant(torch.tensor(0.5), "FLOAT")
        layer = network.definition.add_dequantize(weights, step, trt.float32)
        layer.set_input(2, network.constant(torch.tensor(3, dtype=torch.int8), "INT8"))
        return layer

    with pytest.raises(UnsupportedError, match="zero point"):
        run_layer(make)


def test_nvfp4_activations_are_near_and_on_the_grid() -> None:
    """Blocks of 16: FP8 scales of a global scale; the double dequantize gives x back, nearly."""
    x = random(4, 64) * 3
    whole = float(x.abs().max()) / (448 * 6)
    network = SmallNetwork()
    definition = network.definition
    tensor, step = network.input("x", "HALF", 4, 64), network.constant(torch.tensor(whole), "FLOAT")
    layer = definition.add_dynamic_quantize(tensor, 1, 16, trt.fp4, trt.fp8)
    layer.set_input(1, step)
    scales = definition.add_dequantize(layer.get_output(1), step, trt.float16).get_output(0)
    values = definition.add_dequantize(layer.get_output(0), scales, trt.float16)
    network.output(values.get_output(0), "result")
    network.output(definition.add_identity(scales).get_output(0), "scales")
    found = network.run({"x": x})
    amax = x.reshape(4, 4, 16).abs().amax(-1)
    # E4M3 has 3 bits of mantissa: a scale is within 1/16 of amax / 6.
    torch.testing.assert_close(found["scales"], amax / 6, rtol=1 / 16, atol=0)
    grid = (found["result"] / found["scales"].repeat_interleave(16, 1)).abs()
    steps = torch.tensor(sorted(set(map(abs, FP4_VALUES))))
    assert (grid[..., None] - steps).abs().amin(-1).max() < 1e-5
    # Half the widest gap of E2M1 is 1 of 6, and a rounded-down scale clips another 1/16.
    assert ((found["result"] - x).abs() / amax.repeat_interleave(16, 1)).max() < 1 / 6 + 1 / 16


def test_mxfp8_scales_are_powers_of_two() -> None:
    x = random(2, 64)
    network = SmallNetwork()
    definition = network.definition
    layer = definition.add_dynamic_quantize(
        network.input("x", "HALF", 2, 64), 1, 32, trt.fp8, trt.DataType.E8M0
    )
    back = definition.add_dequantize(layer.get_output(0), layer.get_output(1), trt.float16)
    network.output(back.get_output(0), "result")
    result = network.run({"x": x})["result"]
    assert ((result - x).abs() <= x.abs() / 16 + 2.0**-16).all()
    assert not torch.equal(result, x)
