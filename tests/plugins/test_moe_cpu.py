"""Experts: the reference against transformers' modules, the kernels against the reference."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch

from llmc.plugins.graph import OpCall
from llmc.plugins.moe.cpu import unsupported
from llmc.plugins.moe.reference import evaluate
from llmc.plugins.moe.spec import QUANTS
from llmc.quant.format import Choice, load_format
from tests.plugins.kernels_cpu import INSTRUCTION_SETS, Float32Array
from tests.plugins.lowered_cpu import LoweredCall
from tests.plugins.quantized_linears import LAYOUT, stored

HIDDEN, INNER, EXPERTS, TOP_K = 128, 192, 6, 2
PLAIN_TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
FORMS = (*PLAIN_TYPES, *QUANTS, *(f"{quant} at build" for quant in ("W8A16", "W4A16")))
ACTIVATIONS = {"silu": (None, None), "gelu_tanh": (None, None), "clamped_swiglu": (1.702, 0.6)}


def draw(*shape: int, seed: int) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def routing_of(count: int, seed: int = 7) -> Float32Array:
    """Return random choices; expert 1 gets most tokens and the last one none."""
    generator = np.random.default_rng(seed)
    choices = [generator.permutation(EXPERTS - 1)[:TOP_K] for _ in range(count)]
    experts = np.array(choices, np.float32).reshape(count, TOP_K)
    experts[1::2, 0], experts[1::2, 1] = 1, 3
    weights = generator.uniform(0.1, 1, (count, TOP_K))
    return np.concatenate([experts, weights], axis=1).astype(np.float32)


def make(form: str, *, activation: str = "silu", bias: bool = False) -> LoweredCall:
    """Return the experts stored as `form` says, weights so that outputs are about 1."""
    quant, _, at_build = form.partition(" ")
    whole = {
        "fc": 1.5 * draw(EXPERTS, 2 * INNER, HIDDEN, seed=0) / np.sqrt(HIDDEN),
        "proj": 2 * draw(EXPERTS, HIDDEN, INNER, seed=1) / np.sqrt(INNER),
    }
    tensors: dict[str, npt.NDArray[Any]] = {}
    for product, weight in whole.items():
        if quant in PLAIN_TYPES or at_build:
            dtype = PLAIN_TYPES.get(quant, np.float16)
            tensors[f"{product}_weight"] = weight.astype(dtype)
        else:
            tensors |= _stored(quant, product, weight)
    if bias:
        tensors["fc_bias"] = 0.3 * draw(EXPERTS, 2 * INNER, seed=2)
        tensors["proj_bias"] = 0.3 * draw(EXPERTS, HIDDEN, seed=3)
    alpha, limit = ACTIVATIONS[activation]
    is_stored = quant in QUANTS and not at_build
    attrs: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_experts": EXPERTS,
        "first_expert": 0,
        "top_k": TOP_K,
        "activation": activation,
        "alpha": alpha,
        "limit": limit,
        "quant": quant if quant in QUANTS else "none",
        "stored_quantized": is_stored,
        "layout": LAYOUT if is_stored and load_format(quant).needs_layout else None,
    }
    call = OpCall(
        plugin="moe",
        name="it",
        inputs=("x", "routing"),
        outputs=("y",),
        attrs=attrs,
        weights={name: (name,) for name in tensors},
    )
    return LoweredCall(call, tensors, "float16")


def _stored(quant: str, product: str, weight: Float32Array) -> dict[str, npt.NDArray[Any]]:
    layout = LAYOUT if load_format(quant).needs_layout else None
    choice = Choice(module=product, dtype="float16", input_amax=5.0)
    modules = [stored(quant, expert, choice, layout) for expert in weight]
    stacked = {f"{product}_{role}": np.stack([m[role] for m in modules]) for role in modules[0]}
    if f"{product}_activation_scaling_factor" in stacked:
        stacked[f"{product}_activation_scaling_factor"] = np.full(1, 5 / 448, np.float32)
    return stacked


def expected(experts: LoweredCall, x: Float32Array, routing: Float32Array) -> Float32Array:
    attrs: Any = experts.call.attrs
    weights: Any = {}
    for role, array in experts.lowering.tensors.items():
        if attrs["stored_quantized"] and not role.endswith("bias"):
            weights[role] = [array]
        elif array.dtype == ml_dtypes.bfloat16:
            weights[role] = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            weights[role] = torch.from_numpy(array)
    found: Float32Array = evaluate(
        torch.from_numpy(x), torch.from_numpy(routing), **weights, **attrs
    ).numpy()
    return found


def tolerance(form: str, instruction_set: str) -> float:
    """Absolute, for outputs of about 1, as in test_linear_cpu, twice: two products."""
    if form == "FP8":
        # An activation beside the middle of two e4m3 numbers may round to either.
        return 0.12
    if instruction_set.endswith("amx") and form not in ("float32", "float16", "W4A16"):
        return 6e-2
    return 2e-5 if form in PLAIN_TYPES else 2e-3


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("form", FORMS)
def test_equals_reference(form: str, instruction_set: str) -> None:
    experts = make(form, bias=True)
    for count in (1, 2, 9, 70):
        x, routing = draw(count, HIDDEN, seed=count), routing_of(count)
        wanted = expected(experts, x, routing)
        assert wanted.std() > 0.3
        found = experts(instruction_set, x, routing)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance(form, instruction_set))
        if form == "FP8":
            assert np.abs(found - wanted).mean() < 3e-3


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str, instruction_set: str) -> None:
    experts = make("float32", activation=activation, bias=True)
    x, routing = draw(11, HIDDEN, seed=1), routing_of(11)
    found = experts(instruction_set, x, routing)
    np.testing.assert_allclose(found, expected(experts, x, routing), rtol=0, atol=2e-5)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("form", FORMS)
def test_token_does_not_depend_on_its_batch(form: str, instruction_set: str) -> None:
    """Bit for bit, whichever tokens share its experts."""
    experts = make(form)
    x, routing = draw(61, HIDDEN, seed=5), routing_of(61)
    whole = experts(instruction_set, x, routing)
    for start, stop in ((0, 1), (5, 7), (3, 16), (1, 50)):
        part = experts(instruction_set, x[start:stop], routing[start:stop])
        np.testing.assert_array_equal(part, whole[start:stop])


def test_more_tokens_of_an_expert_than_a_block() -> None:
    experts = make("float32")
    x, routing = draw(900, HIDDEN, seed=6), routing_of(900)
    found = experts(INSTRUCTION_SETS[0], x, routing)
    np.testing.assert_allclose(found, expected(experts, x, routing), rtol=0, atol=2e-5)


@pytest.mark.parametrize("form", ("float32", "W8A16", "FP8"))
def test_ranks_sum_to_the_whole(form: str) -> None:
    """Two ranks of three experts each; one of them has nothing to do for some tokens."""
    experts = make(form)
    x, routing = draw(13, HIDDEN, seed=8), routing_of(13)
    routing[0, :TOP_K] = (0, 2)
    parts = []
    for first in (0, 3):
        attrs = {**experts.call.attrs, "first_expert": first, "num_experts": 3}
        tensors = {
            role: array if array.shape == (1,) else array[first : first + 3]
            for role, array in experts.lowering.tensors.items()
        }
        rank = LoweredCall(replace(experts.call, attrs=attrs), tensors, "float16")
        parts.append(rank(INSTRUCTION_SETS[0], x, routing))
        np.testing.assert_allclose(parts[-1], expected(rank, x, routing), rtol=0, atol=0.12)
    assert not parts[1][0].any()
    whole = experts(INSTRUCTION_SETS[0], x, routing)
    np.testing.assert_allclose(parts[0] + parts[1], whole, rtol=0, atol=1e-5)


def test_reference_equals_transformers() -> None:
    from transformers import GptOssConfig, MixtralConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    sizes: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_local_experts": EXPERTS,
    }
    x, routing = draw(20, HIDDEN, seed=9), routing_of(20)
    chosen = torch.from_numpy(routing[:, :TOP_K]).long(), torch.from_numpy(routing[:, TOP_K:])
    for activation, bias in (("silu", False), ("clamped_swiglu", True)):
        experts = make("float32", activation=activation, bias=bias)
        held = {n: torch.from_numpy(a) for n, a in experts.lowering.tensors.items()}
        up, gate = held["fc_weight"].chunk(2, dim=1)
        module: Any
        if bias:
            # Columns of gate and up alternate, weights are [in, out].
            config = GptOssConfig(**sizes, swiglu_alpha=1.702, swiglu_limit=0.6)
            module = GptOssExperts(config)
            up_bias, gate_bias = held["fc_bias"].chunk(2, dim=1)
            module.gate_up_proj.data = torch.stack([gate, up], 2).flatten(1, 2).transpose(1, 2)
            module.gate_up_proj_bias.data = torch.stack([gate_bias, up_bias], 2).flatten(1, 2)
            module.down_proj.data = held["proj_weight"].transpose(1, 2)
            module.down_proj_bias.data = held["proj_bias"]
        else:
            module = MixtralExperts(MixtralConfig(**sizes))
            module.gate_up_proj.data = torch.cat([gate, up], dim=1)
            module.down_proj.data = held["proj_weight"]
        with torch.no_grad():
            theirs = module.forward(torch.from_numpy(x), *chosen).numpy()
        np.testing.assert_allclose(expected(experts, x, routing), theirs, rtol=0, atol=1e-5)


def test_other_quantizations_are_a_reason() -> None:
    call = make("float32").call
    attrs = {**call.attrs, "quant": "W4A8_AWQ", "activation": "relu"}
    reasons = unsupported(replace(call, attrs=attrs))
    assert reasons == [
        "it: activation 'relu', expected one of silu, gelu_tanh, clamped_swiglu",
        "it: experts of quantization 'W4A8_AWQ', expected W8A16, W4A16, FP8",
    ]


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_sigmoid_gate(instruction_set: str) -> None:
    call = OpCall(
        plugin="sigmoid_gate",
        name="it",
        inputs=("x", "gate"),
        outputs=("y",),
        attrs={"hidden_size": HIDDEN},
    )
    x, gate = draw(300, HIDDEN, seed=1), 4 * draw(300, 1, seed=2)
    found = LoweredCall(call, {}, "float32")(instruction_set, x, gate)
    np.testing.assert_allclose(found, x / (1 + np.exp(-gate)), rtol=2e-6)
