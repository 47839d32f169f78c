"""Experts in TensorRT's layers, routing and products, by the interpreter, against references."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llmc.builders.targets.tensorrt_interpreter.inputs import Mode
from llmc.dtypes import numpy_dtype
from llmc.plugins.graph import OpCall
from llmc.plugins.moe import tensorrt as lowering_of_moe
from llmc.plugins.moe.tensorrt import num_second_products, runs, unsupported
from llmc.plugins.moe_routing import tensorrt as lowering_of_routing
from llmc.plugins.moe_routing.reference import evaluate as evaluate_routing
from tests.plugins import test_moe_cpu as experts_of
from tests.plugins.kernels_cpu import Float32Array
from tests.plugins.lowered_tensorrt import LoweredOp
from tests.plugins.test_moe_cpu import ACTIVATIONS, EXPERTS, FORMS, HIDDEN, PLAIN_TYPES, TOP_K, draw
from tests.plugins.test_moe_routing import EXPERTS as ROUTED
from tests.plugins.test_moe_routing import KINDS


def lower(
    call: OpCall, columns: tuple[int, ...], tensors: dict[str, Any], dtype: str, directory: Path
) -> Callable[..., Float32Array]:
    """Return a function of the op's inputs [T, columns], two slots' if T is even."""
    named = dict(zip(call.inputs, columns, strict=True))
    op = LoweredOp(call, named, directory=directory, tensors=tensors, dtype=dtype)

    def run(*inputs: Float32Array, mode: Mode = "ideal") -> Float32Array:
        slots = 2 if len(inputs[0]) % 2 == 0 else 1
        given = {
            name: np.ascontiguousarray(rows).reshape(slots, -1, rows.shape[1])
            for name, rows in zip(call.inputs, inputs, strict=True)
        }
        found = op(given, mode=mode)
        return found.reshape(-1, found.shape[2])

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_routing_equals_reference(kind: str, tmp_path: Path) -> None:
    """Among the rows ties, which go to the lower number, and huge logits."""
    generator = np.random.default_rng(3)
    logits = generator.standard_normal((200, ROUTED)).astype(np.float32)
    logits[0], logits[1, ::2], logits[2] = 1.0, 2.0, logits[2] * 50
    logits[3:50] = logits[3:50].round()
    tensors: dict[str, Any] = {}
    weights: dict[str, tuple[str, ...]] = {}
    if kind == "deepseek_v3":
        tensors = {"bias": generator.standard_normal(ROUTED).astype(np.float32)}
        weights = {"correction_bias": ("bias",)}
    call = OpCall(
        plugin="moe_routing",
        name="it",
        inputs=("logits",),
        outputs=("y",),
        attrs=KINDS[kind],
        weights=weights,
    )
    correction: Any = {role: torch.from_numpy(tensors[names[0]]) for role, names in weights.items()}
    wanted = evaluate_routing(torch.from_numpy(logits), **KINDS[kind], **correction).numpy()
    found = lower(call, (ROUTED,), tensors, "float32", tmp_path)(logits)
    np.testing.assert_array_equal(found[:, :4], wanted[:, :4])
    np.testing.assert_allclose(found[:, 4:], wanted[:, 4:], rtol=3e-6, atol=1e-30)


class Experts:
    """Experts of tests.plugins.test_moe_cpu, by both: as references and as TensorRT layers."""

    def __init__(self, form: str, directory: Path, **options: Any) -> None:
        self.on_cpu = experts_of.make(form, **options)
        self.dtype = form if form in PLAIN_TYPES else "float16"
        tensors = self.on_cpu.lowering.tensors
        for role in ("fc_bias", "proj_bias"):
            if role in tensors:
                tensors[role] = tensors[role].astype(numpy_dtype(self.dtype))
        self.directory = directory

    def lower(self, **attrs: Any) -> Callable[..., Float32Array]:
        call = self.on_cpu.call
        call = replace(call, attrs={**call.attrs, **attrs})
        columns, tensors = (HIDDEN, 2 * TOP_K), self.on_cpu.lowering.tensors
        return lower(call, columns, tensors, self.dtype, self.directory)

    def expected(self, x: Float32Array, routing: Float32Array) -> Float32Array:
        return experts_of.expected(self.on_cpu, x, routing)


def tolerance(form: str) -> float:
    """Absolute, for outputs of about 1: the order of sums, and for W4A16, whose scales have the
    type of activations in the network, float16; the reference rounds some sums to x's float32."""
    return 0.12 if form == "FP8" else 3e-5 if form.split()[0] != "W4A16" else 3e-3


@pytest.mark.parametrize("form", FORMS)
def test_experts_equal_reference(form: str, tmp_path: Path) -> None:
    experts = Experts(form, tmp_path, bias=True)
    lowered = experts.lower()
    for count in (1, 18):
        x, routing = draw(count, HIDDEN, seed=count), experts_of.routing_of(count)
        wanted = experts.expected(x, routing)
        assert wanted.std() > 0.3
        found = lowered(x, routing)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance(form))
        if form == "FP8":
            assert np.abs(found - wanted).mean() < 3e-3


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str, tmp_path: Path) -> None:
    experts = Experts("float32", tmp_path, activation=activation, bias=True)
    x, routing = draw(11, HIDDEN, seed=1), experts_of.routing_of(11)
    found = experts.lower()(x, routing)
    np.testing.assert_allclose(found, experts.expected(x, routing), rtol=0, atol=3e-5)


@pytest.mark.parametrize("form", ["float16", "W8A16", "W4A16", "FP8"])
def test_runs_of_experts_add_up(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two experts to a weight, three runs: as if the experts were larger."""
    experts = Experts(form, tmp_path, bias=True)
    monkeypatch.setattr(lowering_of_moe, "MAX_ELEMENTS", 2 * 2 * experts_of.INNER * HIDDEN)
    call = experts.on_cpu.call
    assert runs(call) == [range(0, 2), range(2, 4), range(4, 6)]
    assert num_second_products(call) == (EXPERTS if form == "W8A16" else 3)
    x, routing = draw(8, HIDDEN, seed=4), experts_of.routing_of(8)
    found = experts.lower()(x, routing)
    np.testing.assert_allclose(found, experts.expected(x, routing), rtol=0, atol=tolerance(form))


def test_choices_of_other_ranks_count_nothing(tmp_path: Path) -> None:
    experts = Experts("float32", tmp_path, bias=True)
    x, routing = draw(9, HIDDEN, seed=2), experts_of.routing_of(9)
    # As if the rank's six were the experts 10 to 15: one choice of each token is another rank's.
    routing[:, :TOP_K] += (10, 40)
    alone = routing.copy()
    alone[:, 0] -= 10
    alone[:, TOP_K + 1] = 0
    alone[:, 1] = 0
    found = experts.lower(first_expert=10)(x, routing)
    np.testing.assert_allclose(found, experts.expected(x, alone), rtol=0, atol=3e-5)


def test_half_precision_is_near(tmp_path: Path) -> None:
    """Each value rounded to float16, the weights of the sum before the second product."""
    experts = Experts("float16", tmp_path)
    x = draw(8, HIDDEN, seed=5).astype(np.float16).astype(np.float32)
    routing = experts_of.routing_of(8).astype(np.float16).astype(np.float32)
    lowered = experts.lower()
    difference = np.abs(lowered(x, routing, mode="typed") - experts.expected(x, routing))
    assert 1e-5 < difference.max() < 6e-3


def test_what_is_not_lowered_is_a_reason() -> None:
    call = experts_of.make("float32").call
    attrs = {**call.attrs, "quant": "W4A8_AWQ", "activation": "relu"}
    assert unsupported(replace(call, attrs=attrs), 64) == [
        "it: activation 'relu', expected one of silu, gelu_tanh, clamped_swiglu",
        "it: experts of quantization 'W4A8_AWQ', expected W8A16, W4A16, FP8",
    ]
    plain = replace(call, attrs={**call.attrs, "quant": "FP8"})
    (reason,) = unsupported(plain, 64)
    assert "expected a checkpoint that is quantized already" in reason
    attrs = {**KINDS["mixtral"], "scoring": "tanh", "num_experts": 512}
    routing = replace(call, plugin="moe_routing", attrs=attrs)
    reasons = lowering_of_routing.unsupported(routing, 64)
    assert [reason.split(",")[0] for reason in reasons] == ["it: scoring 'tanh'", "it: 512 experts"]


def test_sigmoid_gate(tmp_path: Path) -> None:
    call = OpCall(
        plugin="sigmoid_gate",
        name="it",
        inputs=("x", "gate"),
        outputs=("y",),
        attrs={"hidden_size": HIDDEN},
    )
    x, gate = draw(6, HIDDEN, seed=1), 4 * draw(6, 1, seed=2)
    found = lower(call, (HIDDEN, 1), {}, "float32", tmp_path)(x, gate)
    np.testing.assert_allclose(found, x / (1 + np.exp(-gate)), rtol=2e-6)
