"""Formats on the experts of Mixtral.

Module by module: the tensors of one layer against NVIDIA's checkpoints. Experts' tensors are those
of single modules, stacked.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llmc.quant.format import Choice, QuantFormat, load_format
from llmc.quant.layouts import arrange
from tests.goldens import golden

EXPERTS = "model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}.weight"
Weights = dict[str, npt.NDArray[Any]]


def expert_weights(weights: Weights, layer: int, module: str) -> list[npt.NDArray[Any]]:
    """Return mlp.fc (w3 over w1) or mlp.proj of each of the four experts."""
    names = ("w3", "w1") if module == "fc" else ("w2",)
    return [
        np.concatenate(
            [weights[EXPERTS.format(layer=layer, expert=expert, name=name)] for name in names]
        )
        for expert in range(4)
    ]


@pytest.mark.parametrize("module", ["fc", "proj"])
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        # Written as for compute capability 9.0, where experts are laid out as for 8.0.
        ("mixtral-quant-int8_wo", "sm90"),
        ("mixtral-quant-int4_wo-sm-80", "sm80"),
    ],
)
def test_golden_experts_weight_only(name: str, layout: str, module: str) -> None:
    wanted = golden.load_checkpoint(name)
    form = load_format(wanted["config"]["quantization"]["quant_algo"])
    weights = golden.model_tensors(wanted["model"])
    entries = wanted["ranks"]["rank0.safetensors"]
    for layer in range(2):
        tensors = stacked(form, expert_weights(weights, layer, module), Choice(dtype="float16"))
        tensors["weight"] = arrange(tensors["weight"], layout, bits=form.weight_bits)
        for role, tensor in tensors.items():
            entry = entries[f"transformer.layers.{layer}.mlp.{module}.{role}"]
            assert list(tensor.shape) == entry["shape"]
            assert golden.sha256(tensor) == entry["sha256"], role


@pytest.mark.parametrize("module", ["fc", "proj"])
def test_golden_experts_fp8(module: str) -> None:
    wanted = golden.load_checkpoint("mixtral-quant-modelopt-fp8")
    weights = golden.model_tensors(wanted["model"])
    entries = wanted["ranks"]["rank0.safetensors"]
    for layer in range(2):
        choice = Choice(dtype="float16", input_amax=1.0)
        tensors = stacked(load_format("FP8"), expert_weights(weights, layer, module), choice)
        for role in ("weight", "weights_scaling_factor"):
            entry = entries[f"transformer.layers.{layer}.mlp.{module}.{role}"]
            assert list(tensors[role].shape) == entry["shape"]
            assert golden.sha256(tensors[role]) == entry["sha256"], role


def stacked(form: QuantFormat, experts: list[npt.NDArray[Any]], choice: Choice) -> Weights:
    made = [form.quantize(weight, choice).tensors for weight in experts]
    return {role: np.stack([tensors[role] for tensors in made]) for role in made[0]}
