"""What every format must keep, tested on the day its line is added."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llmc.quant import FORMATS, format
from llmc.quant.format import Choice, QuantFormat, load_format, tensor_name

NUM_OUT, NUM_IN = 48, 256
WEIGHT: npt.NDArray[np.float32] = 0.02 * np.random.default_rng(3).standard_normal(
    (NUM_OUT, NUM_IN)
).astype(np.float32)
MODULES = ("qkv", "dense", "fc")
HALF_STEPS = {"W8": 1 / 128 + 1 / 2048, "W4": 1 / 7, "FP8": 1 / 14 / 2, "NVFP4": 1 / 6 * 17 / 16}
"""The largest error, by the largest magnitude sharing a scale, of formats whose name begins so.

INT8 and INT4 of convert_checkpoint clamp the largest positive value by a whole step, 1/128 and 1/8,
and round scales to float16;
INT4 of AWQ has half-steps of 1/14. e4m3 goes from 416 to 448, e2m1 from 4 to 6 under a block scale
that was itself rounded, by up to 1/16.
"""


def choice(form: QuantFormat, module: str = "fc", dtype: str = "float16") -> Choice:
    return Choice(
        module=module,
        dtype=dtype,
        group_size=form.config.get("group_size", 128),
        segments=(16, 16, 16) if module == "qkv" else None,
        input_amax=3.0,
        output_amax=2.0,
    )


@pytest.mark.parametrize("algo", FORMATS)
def test_a_format_goes_by_its_name(algo: str) -> None:
    assert load_format(algo).algo == algo


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("algo", FORMATS)
def test_what_is_stored_is_what_is_declared(algo: str, dtype: str, module: str) -> None:
    form = load_format(algo)
    chosen = choice(form, module, dtype)
    tensors = form.quantize(WEIGHT, chosen).tensors
    declared = form.tensors_of(module)
    assert {tensor.role for tensor in declared} == tensors.keys()
    for tensor in declared:
        stored = tensors[tensor.role]
        assert stored.shape == tensor.shape(NUM_OUT, NUM_IN, chosen.group_size), tensor.role
        assert str(stored.dtype) == (tensor.dtype or dtype), tensor.role


@pytest.mark.parametrize("algo", FORMATS)
def test_dequantizing_undoes_quantizing_within_half_a_step(algo: str) -> None:
    form = load_format(algo)
    back = form.dequantize(form.quantize(WEIGHT, choice(form)))
    assert back.shape == WEIGHT.shape and back.dtype == np.float32
    groups = 1
    if form.granularity == "per_group":
        groups = NUM_IN // choice(form).group_size
    amax = np.abs(WEIGHT.reshape(NUM_OUT, groups, -1)).max(axis=2, keepdims=True)
    if form.granularity == "per_tensor":
        amax = amax.max()
    error = np.abs(back - WEIGHT).reshape(NUM_OUT, groups, -1)
    half_step = next(step for name, step in HALF_STEPS.items() if algo.startswith(name))
    assert (error <= half_step * amax * 1.001).all(), (error / amax).max()


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("algo", FORMATS)
def test_packing_what_was_unpacked_changes_nothing(algo: str, module: str) -> None:
    form = load_format(algo)
    chosen = choice(form, module)
    first = form.quantize(WEIGHT, chosen)
    second = form.pack(form.unpack(first), chosen)
    for role, stored in first.tensors.items():
        if role == "per_channel_scale" and form.activation == "static int8":
            # A product and a quotient of float32 scales.
            np.testing.assert_allclose(second.tensors[role], stored, rtol=1e-6)
        else:
            assert second.tensors[role].tobytes() == stored.tobytes(), role


@pytest.mark.parametrize("algo", FORMATS)
def test_pieces_do_not_show(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form = load_format(algo)
    whole = form.quantize(WEIGHT, choice(form))
    monkeypatch.setattr(format, "CHUNK_BYTES", 4 * NUM_IN * 5)
    pieces = form.quantize(WEIGHT, choice(form))
    for role, stored in whole.tensors.items():
        np.testing.assert_array_equal(pieces.tensors[role], stored)


@pytest.mark.parametrize("algo", FORMATS)
@pytest.mark.parametrize("dtype", [np.float16, "order"])
def test_zeros_stay_zero_in_any_memory_order(algo: str, dtype: Any) -> None:
    form = load_format(algo)
    weight = WEIGHT.copy()
    weight[3] = 0
    weight[5, :16] = 0
    expected = form.dequantize(form.quantize(weight, choice(form)))
    assert not expected[3].any() and np.isfinite(expected).all()
    if dtype == "order":
        again = form.dequantize(form.quantize(np.asfortranarray(weight), choice(form)))
        np.testing.assert_array_equal(again, expected)
    else:
        nothing = form.quantize(np.zeros((NUM_OUT, NUM_IN), dtype), choice(form))
        assert not form.dequantize(nothing).any()


def test_names_beside_the_input() -> None:
    tensor = next(
        tensor
        for tensor in load_format("W8A8_SQ_PER_TENSOR_PLUGIN").tensors
        if tensor.role == "scale_to_int"
    )
    layer = "transformer.layers.7"
    assert [
        tensor_name(tensor, f"{layer}.{module}")
        for module in ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
    ] == [
        f"{layer}.input_layernorm.scale_to_int",
        f"{layer}.attention.quantization_scaling_factor",
        f"{layer}.post_layernorm.scale_to_int",
        f"{layer}.post_layernorm.scale_to_int",
        f"{layer}.mlp.quantization_scaling_factor",
    ]
