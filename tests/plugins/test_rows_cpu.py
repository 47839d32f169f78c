"""The small kernels against numpy or their torch reference: all but linear and attention."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from llmc.plugins import graph, native
from llmc.plugins.activation.cpu import NUMBERS
from llmc.plugins.activation.spec import ACTIVATIONS
from llmc.plugins.graph import Attr, OpCall
from tests.plugins.kernels_cpu import INSTRUCTION_SETS, activated, run
from tests.plugins.lowered_cpu import LoweredCall

COLUMNS = (1, 7, 64, 577)
# More rows than one task takes for the widest.
ROWS = (1, 5, 40)

every_set = pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
every_width = pytest.mark.parametrize("columns", COLUMNS)
every_count = pytest.mark.parametrize("count", ROWS)


def draw(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def reference_of(plugin: str) -> Any:
    return graph.part(plugin, "reference")


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
@pytest.mark.parametrize("has_bias", (False, True))
def test_layer_norm(instruction_set: str, columns: int, count: int, has_bias: bool) -> None:
    # A mean that is large beside the spread, as hidden states have.
    x, weight, bias = draw(count, columns) + 5, draw(columns), draw(columns) * 2
    found = run(
        instruction_set,
        "layer_norm",
        inputs=[x],
        output=empty(count, columns),
        tensors=[weight, bias if has_bias else None],
        dims=(columns,),
        params=(1e-5,),
    )
    wide = x.astype(np.float64)
    spread = np.sqrt(wide.var(axis=1, keepdims=True) + 1e-5)
    expected = (wide - wide.mean(axis=1, keepdims=True)) / spread * weight + has_bias * bias
    # Rounding of the mean is of the order of 5 units in the last place, over the spread.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


HEADS = {"num_heads": 4, "num_kv_heads": 2, "head_size": 40}


@every_set
@pytest.mark.parametrize("kind", ("rms_norm", "layer_norm"))
@pytest.mark.parametrize("per_head", (False, True))
def test_head_norm(instruction_set: str, kind: str, per_head: bool) -> None:
    qkv = draw(30, 8 * 40) * 2 + 1
    weights = [draw(n, 40) if per_head else draw(40) for n in (4, 2)]
    found = run(
        instruction_set,
        "head_norm",
        inputs=[qkv],
        output=empty(30, 8 * 40),
        tensors=[*weights],
        dims=(4, 2, 40, ("rms_norm", "layer_norm").index(kind), int(per_head)),
        params=(1e-6,),
    )
    expected = reference_of("head_norm").evaluate(
        torch.from_numpy(qkv),
        q_weight=torch.from_numpy(weights[0]),
        k_weight=torch.from_numpy(weights[1]),
        kind=kind,
        epsilon=1e-6,
        per_head=per_head,
        **HEADS,
    )
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[:, 240:], qkv[:, 240:])


@every_set
def test_wide_qk_norm(instruction_set: str) -> None:
    """With the sums of a second rank added, whose heads are not here."""
    qkv, others = draw(30, 8 * 40) * 2, np.abs(draw(30, 2)) * 100
    weights = [draw(160), draw(80)]
    squares = run(instruction_set, "qk_squares", inputs=[qkv], output=empty(30, 2), dims=(4, 2, 40))
    wanted = reference_of("qk_squares").evaluate(torch.from_numpy(qkv), **HEADS).numpy()
    np.testing.assert_allclose(squares, wanted, rtol=1e-6)
    found = run(
        instruction_set,
        "wide_qk_norm",
        inputs=[qkv, squares + others],
        output=empty(30, 8 * 40),
        tensors=[*weights],
        dims=(4, 2, 40, 8, 4),
        params=(1e-6,),
    )
    expected = reference_of("wide_qk_norm").evaluate(
        torch.from_numpy(qkv),
        torch.from_numpy(wanted + others),
        q_weight=torch.from_numpy(weights[0]),
        k_weight=torch.from_numpy(weights[1]),
        total_heads=8,
        total_kv_heads=4,
        epsilon=1e-6,
        **HEADS,
    )
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[:, 240:], qkv[:, 240:])


@every_set
@every_width
@every_count
def test_gated_activation(instruction_set: str, columns: int, count: int) -> None:
    x = 10 * draw(count, 2 * columns)
    x[0, 0] = x[0, columns] = -200.0  # silu of it is zero, not NaN
    first, second = np.split(x.astype(np.float64), 2, axis=1)
    for half, expected in ((0, silu(first) * second), (1, first * silu(second))):
        found = run(
            instruction_set,
            "gated_activation",
            inputs=[x],
            output=empty(count, columns),
            dims=(columns, NUMBERS["silu"], half),
        )
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


@every_set
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(instruction_set: str, name: str) -> None:
    """Over the whole range, far tails included: relative to the result, except near its zeros."""
    x = np.concatenate([np.linspace(-12, 12, 4003), [-200.0, 0.0, 1e4]]).astype(np.float32)
    found = run(
        instruction_set,
        "activation",
        inputs=[x],
        output=empty(2, 2003),
        dims=(2003, NUMBERS[name]),
    )
    expected = activated(name, x.astype(np.float64)).reshape(2, 2003)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


@every_set
@pytest.mark.parametrize("scale", (1.0, 0.0625))
@pytest.mark.parametrize("softcap", (None, 30.0))
def test_logits_transform(instruction_set: str, scale: float, softcap: float | None) -> None:
    x = 100 * draw(7, 3001)
    found = run(
        instruction_set,
        "logits_transform",
        inputs=[x],
        output=empty(7, 3001),
        dims=(3001,),
        params=(scale, softcap or 0.0),
    )
    expected = x.astype(np.float64) * scale
    if softcap is not None:
        expected = np.tanh(expected / softcap) * softcap
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-5)


@every_set
@every_width
def test_clamp(instruction_set: str, columns: int) -> None:
    x = 3 * draw(40, columns)
    found = run(
        instruction_set,
        "clamp",
        inputs=[x],
        output=empty(40, columns),
        dims=(columns,),
        params=(2.5,),
    )
    np.testing.assert_array_equal(found, x.clip(-2.5, 2.5))


@every_set
@every_width
@every_count
def test_add(instruction_set: str, columns: int, count: int) -> None:
    a, b = draw(count, columns), draw(count, columns) * 3
    for scale in (1.0, 0.22):
        found = run(
            instruction_set,
            "add",
            inputs=[a, b],
            output=empty(count, columns),
            dims=(columns,),
            params=(scale,),
        )
        np.testing.assert_array_equal(found, a + b * np.float32(scale))


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
        params=(3.0,),
        type=type,
        batch=batch,
    )
    zeros = np.zeros(33, np.float32)
    expected = [zeros, table[0], table[9], zeros, table[3], table[2]]
    stacked = np.stack(expected, dtype=np.float32, casting="unsafe")
    np.testing.assert_array_equal(found, stacked * np.float32(3.0))


@every_set
@pytest.mark.parametrize("type", ("float32", "float16", "bfloat16"))
def test_position_embedding(instruction_set: str, type: str) -> None:
    dtype = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[type]
    hidden, table = draw(5, 33), draw(12, 33).astype(dtype)
    positions = np.array([0, 11, 3, 4, 5], np.int32)
    batch = native.NativeBatch(num_tokens=5, positions=positions.ctypes.data)
    found = run(
        instruction_set,
        "position_embedding",
        inputs=[hidden],
        output=empty(5, 33),
        tensors=[table],
        dims=(33,),
        type=type,
        batch=batch,
    )
    np.testing.assert_array_equal(found, hidden + table[positions].astype(np.float32))


@every_set
@every_count
@pytest.mark.parametrize("start", (0, 3))
def test_take_columns(instruction_set: str, count: int, start: int) -> None:
    attrs: dict[str, Attr] = {"groups": 6, "group_size": 37, "start": start, "count": 34 - start}
    call = OpCall(
        plugin="take_columns", name="it", inputs=("x",), outputs=("y",), attrs=attrs, weights={}
    )
    x = draw(count, 6 * 37)
    found = LoweredCall(call, {}, "float32")(instruction_set, x)
    wanted = reference_of("take_columns").evaluate(torch.from_numpy(x), **attrs)
    np.testing.assert_array_equal(found, wanted.numpy())


LATENT: dict[str, Attr] = {"num_heads": 3, "nope_size": 24, "rope_size": 10, "value_size": 20}


def latent_call(**changes: int) -> OpCall:
    return OpCall(
        plugin="mla_qkv",
        name="it",
        inputs=("q", "kv", "rope"),
        outputs=("qkv",),
        attrs=LATENT | changes,
        weights={},
    )


@every_set
@every_count
@pytest.mark.parametrize("value_size", (20, 34))
def test_mla_qkv(instruction_set: str, count: int, value_size: int) -> None:
    """Values of fewer columns than keys, which zeros fill up, and of as many."""
    call = latent_call(value_size=value_size)
    inputs = [draw(count, columns) for columns in (3 * 34, 3 * (24 + value_size), 10)]
    found = LoweredCall(call, {}, "float32")(instruction_set, *inputs)
    wanted = reference_of("mla_qkv").evaluate(*map(torch.from_numpy, inputs), **call.attrs)
    np.testing.assert_array_equal(found, wanted.numpy())


def test_mla_qkv_says_which_values_are_too_wide() -> None:
    (reason,) = graph.part("mla_qkv", "cpu").unsupported(latent_call(value_size=35))
    assert reason == "it: 35 columns of v, expected at most 34, as of k"


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
