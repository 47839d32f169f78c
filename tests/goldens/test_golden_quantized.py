"""Quantized checkpoints against NVIDIA's: config.json, names, shapes, dtypes, and bytes.

Scales that NVIDIA's tools found by calibration come from a text that is not stored: such tensors
are compared by name, shape and dtype, and by the formulas that bind them to each other.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llmc.builders.families.family import load_family
from llmc.checkpoint import (
    CheckpointConfig,
    Linear,
    Quantization,
    layer_linears,
    linear_specs,
    tensor_schema,
    tensor_specs,
)
from llmc.mapping import Mapping
from llmc.quant.format import Choice, QuantFormat, QuantizedLinear, group_amax
from llmc.quant.layouts import arrange
from tests.builders.hf_models import assemble
from tests.goldens import golden

QUANTIZED = [
    name
    for name in golden.CHECKPOINTS
    if name.startswith(("llama", "qwen2")) and ("-quant-" in name or "-kv-" in name)
]
DETERMINISTIC = [name for name in QUANTIZED if "_wo" in name or "fp8_rowwise" in name]
FP8 = [name for name in QUANTIZED if "modelopt-fp8" in name]
CALIBRATED = (
    "activation_scaling_factor",
    "kv_cache_scaling_factor",
)


def load(name: str) -> tuple[CheckpointConfig, dict[str, dict[str, dict[str, Any]]]]:
    """Return the config, with the layout that NVIDIA's tool does not record, and the entries."""
    wanted = golden.load_checkpoint(name)
    config = CheckpointConfig.from_json(wanted["config"])
    if config.quantization.quant_algo in ("W8A16", "W4A16"):
        # Without a GPU 0.17 writes as for compute capability 9.0.
        config = replace(config, layout="sm80" if name.endswith("sm-80") else "sm90")
    return config, wanted["ranks"]


def test_golden_files_cover_every_quantized_dense_model() -> None:
    assert len(QUANTIZED) == 22


@pytest.mark.parametrize("name", QUANTIZED)
def test_golden_tensors_are_those_of_the_schema(name: str) -> None:
    config, ranks = load(name)
    assert config.num_rank_files == len(ranks)
    for rank in range(config.num_rank_files):
        schema = tensor_schema(config, rank)
        assert {name: (info.dtype, list(info.shape)) for name, info in schema.items()} == {
            name: (entry["dtype"], entry["shape"])
            for name, entry in ranks[f"rank{rank}.safetensors"].items()
        }


@pytest.mark.parametrize("name", QUANTIZED)
def test_golden_quantization_object_is_what_the_algorithm_implies(name: str) -> None:
    wanted = golden.load_checkpoint(name)["config"]["quantization"]
    quantization = Quantization.of(wanted["quant_algo"], wanted["kv_cache_quant_algo"])
    assert quantization.to_json() == wanted


@pytest.mark.parametrize("name", DETERMINISTIC + FP8)
def test_golden_bytes_are_equal(name: str) -> None:
    config, ranks = load(name)
    weights = golden.model_tensors(golden.load_checkpoint(name)["model"])
    for rank in range(config.num_rank_files):
        made = {name: golden.sha256(tensor) for name, tensor in rank_tensors(config, weights, rank)}
        entries = ranks[f"rank{rank}.safetensors"]
        left = [name for name in entries.keys() - made.keys() if not name.endswith(CALIBRATED)]
        assert not left
        assert made == {name: entries[name]["sha256"] for name in made}


@pytest.mark.parametrize("name", sorted(set(QUANTIZED) - set(DETERMINISTIC) - set(FP8)))
def test_golden_uncalibrated_tensors_are_equal(name: str) -> None:
    config, ranks = load(name)
    weights = golden.model_tensors(golden.load_checkpoint(name)["model"])
    smooths_norms = "_PLUGIN" in str(config.quantization.quant_algo)
    for rank in range(config.num_rank_files):
        entries = ranks[f"rank{rank}.safetensors"]
        compared = 0
        for spec, whole in plain_tensors(config, weights, rank):
            if smooths_norms and "layernorm" in spec.name:
                continue
            part = spec.part(whole, rank, config.mapping.tp_size)
            assert golden.sha256(part) == entries[spec.name]["sha256"], spec.name
            compared += 1
        assert compared >= 3


@pytest.mark.parametrize("suffix", ["", "_pc"])
def test_golden_static_and_per_token_smoothquant_are_one_weight(suffix: str) -> None:
    _, static = load(f"llama-quant-sq{suffix}")
    _, per_token = load(f"llama-quant-sq_pt{suffix}")
    static_file, per_token_file = static["rank0.safetensors"], per_token["rank0.safetensors"]
    shared = [name for name in per_token_file if name.endswith(("weight", "smoother"))]
    # Of each of two layers five weights, two smoothers and two norms; three outside the layers.
    assert len(shared) == 2 * (5 + 2 + 2) + 3
    for name in shared:
        assert static_file[name]["sha256"] == per_token_file[name]["sha256"], name


def test_golden_static_smoothquant_scales_obey_the_formula() -> None:
    config, static = load("llama-quant-sq")
    _, per_token = load("llama-quant-sq_pt")
    file = static["rank0.safetensors"]

    def value(entry: dict[str, Any]) -> npt.NDArray[np.float32]:
        return np.array(entry["values"], np.float32).reshape(entry["shape"])

    form = config.stored_format("transformer.layers.0.mlp.fc")
    assert form is not None
    for linear in layer_linears(config.arch, 0):
        if linear.name.endswith("qkv"):
            continue  # its scales are too many for the golden to hold their values
        names = config.linear_tensors(linear.name)
        tensors = {
            role: value(file[name])
            for role, name in names.items()
            if role not in ("weight", "smoother")
        }
        tensors["weight"] = np.zeros((linear.num_out, linear.num_in), np.int8)
        scale = form.unpack(QuantizedLinear(tensors=tensors)).scale
        wanted = value(per_token["rank0.safetensors"][names["per_channel_scale"]])
        # NVIDIA's per-token scale has been through float16.
        np.testing.assert_allclose(scale, wanted, rtol=2**-10)


def rank_tensors(
    config: CheckpointConfig, weights: dict[str, npt.NDArray[Any]], rank: int
) -> list[tuple[str, npt.NDArray[Any]]]:
    """Return what a rank holds of the tensors that no calibration is needed for."""
    tp_size = config.mapping.tp_size
    tensors = [
        (spec.name, spec.part(whole, rank, tp_size))
        for spec, whole in plain_tensors(config, weights, rank)
    ]
    for layer in range(config.arch.num_hidden_layers):
        linears = layer_linears(config.arch, layer)
        wholes = [whole_weight(config, weights, linear) for linear in linears]
        for linear, whole in zip(linears, wholes, strict=True):
            form = config.stored_format(linear.name)
            assert form is not None
            module = linear.name.rpartition(".")[2]
            amax = None
            if form.algo == "FP8" and module in ("fc", "gate"):
                pair = np.concatenate([group_amax(whole, 1) for whole in wholes[2:4]])
                amax = pair.max(keepdims=True)
            choice = Choice(module=module, dtype=config.dtype, input_amax=1.0, weight_amax=amax)
            tensors += quantized_part(config, form, linear, whole, choice, rank)
    return tensors


def quantized_part(
    config: CheckpointConfig,
    form: QuantFormat,
    linear: Linear,
    whole: npt.NDArray[Any],
    choice: Choice,
    rank: int,
) -> list[tuple[str, npt.NDArray[Any]]]:
    tp_size = config.mapping.tp_size
    if form.after_split:
        plain = next(linear_specs(replace(config, quantization=Quantization()), linear))
        stored = form.quantize(plain.part(whole, rank, tp_size), choice).tensors
    else:
        by_name = {spec.name: spec for spec in linear_specs(config, linear)}
        stored = {
            role: by_name[config.linear_tensors(linear.name)[role]].part(tensor, rank, tp_size)
            for role, tensor in form.quantize(whole, choice).tensors.items()
        }
    if config.layout is not None:
        bits = form.weight_bits
        stored["weight"] = arrange(stored["weight"], config.layout, bits=bits)
    names = config.linear_tensors(linear.name)
    return [(names[role], tensor) for role, tensor in stored.items() if role not in CALIBRATED]


def plain_tensors(
    config: CheckpointConfig, weights: dict[str, npt.NDArray[Any]], rank: int
) -> list[tuple[Any, npt.NDArray[Any]]]:
    """Return specs and whole values of embeddings, norms, biases and lm_head."""
    family = load_family(config.arch.architecture)
    specs = [
        spec
        for spec in tensor_specs(replace(config, quantization=Quantization()), rank)
        if spec.name.endswith(".bias")
        or (".attention." not in spec.name and ".mlp." not in spec.name)
    ]
    return [(spec, assemble(family.sources(spec, config.arch), weights)) for spec in specs]


def whole_weight(
    config: CheckpointConfig, weights: dict[str, npt.NDArray[Any]], linear: Linear
) -> npt.NDArray[Any]:
    whole = replace(config, quantization=Quantization(), mapping=Mapping())
    spec = next(linear_specs(whole, linear))
    family = load_family(config.arch.architecture)
    return assemble(family.sources(spec, config.arch), weights)
