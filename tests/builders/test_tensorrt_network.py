"""The network given to TensorRT: bindings, names, and layers it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.builders.targets.tensorrt_network import (
    INPUTS,
    TABLES,
    LoweredNetwork,
    lower_network,
)
from llmc.builders.targets.tensorrt_rtx_module import import_tensorrt_rtx
from llmc.builders.targets.tensorrt_toolkit import Toolkit
from llmc.errors import BuildError, CheckpointError
from llmc.tensors import TensorInfo
from llmc.weights import SafetensorsFile, SafetensorsWriter
from tests.plugins.tiny_llama import TinyLlama

pytest.importorskip("tensorrt_rtx_bindings", reason="needs TensorRT for RTX: pip install .[rtx]")


@pytest.fixture(scope="module")
def toolkit() -> Toolkit:
    return Toolkit.start(import_tensorrt_rtx())


@pytest.fixture(scope="module")
def tiny() -> TinyLlama:
    return TinyLlama.make(head_dim=64)


def lowered(toolkit: Toolkit, config: Any, **arguments: Any) -> LoweredNetwork:
    given: dict[str, Any] = {"max_seq_len": 32, "weights": "refit"} | arguments
    return lower_network(toolkit, config, 0, **given)


def names_of(network: Any) -> set[str]:
    return {network.get_layer(place).name for place in range(network.num_layers)}


def write_rank(path: Path, tiny: TinyLlama, config: Any) -> SafetensorsFile:
    tensors = {
        name: array.astype(np.float16) for name, array in tiny.rank_tensors(config, 0).items()
    }
    infos = [
        TensorInfo(name=name, dtype="float16", shape=array.shape) for name, array in tensors.items()
    ]
    with SafetensorsWriter(path, infos) as writer:
        for name, array in tensors.items():
            writer.write(name, array)
    return SafetensorsFile.open(path)


def test_bindings(toolkit: Toolkit, tiny: TinyLlama) -> None:
    config = replace(tiny.config(), dtype="float16")
    result = lowered(toolkit, config)
    network = result.network
    inputs = [network.get_input(place) for place in range(network.num_inputs)]
    outputs = [network.get_output(place) for place in range(network.num_outputs)]
    given = [binding.name for binding in result.bindings if binding.is_input]
    assert [tensor.name for tensor in inputs] == given
    embedding, head = TABLES
    layers = config.arch.num_hidden_layers
    caches = [f"{kind}_cache.{layer}" for layer in range(layers) for kind in ("key", "value")]
    assert given == [*INPUTS, embedding, *caches, head]
    assert [binding.name for binding in result.bindings if binding.is_weight] == list(TABLES)
    assert {result.weights[name].shape for name in TABLES} == {(128, 64)}
    aliases = {binding.name: binding.aliases for binding in result.bindings if binding.aliases}
    assert len(aliases) == 2 * layers and aliases["key_cache.0.updated"] == "key_cache.0"
    assert {tensor.name for tensor in outputs} == {*aliases, "logits"}
    cache = next(binding for binding in result.bindings if binding.name == "value_cache.1")
    assert cache.shape == ("B", 2, 32, 64) and cache.dtype == "float16"
    logits = next(tensor for tensor in outputs if tensor.name == "logits")
    assert tuple(logits.shape) == (-1, -1, 128) and logits.dtype == toolkit.trt.float32


def test_layers_are_named_after_the_tensors(toolkit: Toolkit, tiny: TinyLlama) -> None:
    result = lowered(toolkit, replace(tiny.config(), dtype="float16"))
    assert {
        "transformer.layers.0.attention.qkv/matmul",
        "transformer.layers.3.attention/attention_AttentionOutput",
        "transformer.layers.1.mlp.fc+transformer.layers.1.mlp.gate/matmul",
    } <= names_of(result.network)
    assert {"transformer.ln_f.weight", "transformer.layers.2.attention.dense.weight"} <= set(
        result.weights
    )


def test_weights_can_be_made_again(toolkit: Toolkit, tiny: TinyLlama, tmp_path: Path) -> None:
    config = replace(tiny.config(), dtype="float16")
    file = write_rank(tmp_path / "rank0.safetensors", tiny, config)
    result = lowered(toolkit, config, weights="embed", file=file)
    fc, gate = (f"transformer.layers.0.mlp.{name}.weight" for name in ("fc", "gate"))
    weight = result.weights[f"{fc}+{gate}"]
    assert weight.shape == (1, 192, 64) and weight.dtype == "float16"
    np.testing.assert_array_equal(
        weight.make()[0], np.concatenate([file.read(fc), file.read(gate)])
    )
    read = {name for key in result.weights for name in key.split("+")}
    assert read == set(file.infos)


def test_tied_tables_that_differ_are_refused(
    toolkit: Toolkit, tiny: TinyLlama, tmp_path: Path
) -> None:
    config = replace(tiny.config(), dtype="float16")
    file = write_rank(tmp_path / "rank0.safetensors", tiny, config)
    tied = replace(config, arch=replace(config.arch, tie_word_embeddings=True))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight: not .*tie_word_embeddings"):
        lowered(toolkit, tied, file=file)
    assert lowered(toolkit, tied, weights="embed", file=file).weights.keys() >= set(TABLES)


def test_a_refused_layer_is_an_error_with_its_name(toolkit: Toolkit, tiny: TinyLlama) -> None:
    result = lowered(toolkit, replace(tiny.config(), dtype="float16"))
    from llmc.plugins.tensorrt_layers import Layers

    layers = Layers(toolkit.trt, result.network, toolkit.last_error)
    layers.scope = "transformer.layers.0.attention.qkv"
    with pytest.raises(BuildError, match=r"layers\.0\.attention\.qkv: TensorRT refuses .*matmul"):
        layers.matmul(result.network.get_input(0), result.network.get_input(2))
