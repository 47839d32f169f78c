"""The CPU target: every no has a reason, fusion, config.json, and engine files that are broken."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.builders.network import build_network
from llmc.builders.targets import cpu
from llmc.builders.targets.cpu_fusion import fuse
from llmc.checkpoint import Checkpoint, Quantization
from llmc.errors import CheckpointError, UnsupportedError
from llmc.log import NullProgress
from llmc.plugins import PLUGINS, graph
from llmc.plugins.cpu_file import EngineFile
from llmc.plugins.graph import OpCall
from llmc.plugins.panels import interleave_halves, pack_panels
from tests.plugins.tiny_llama import TinyLlama
from tests.runtime.cpu_engines import LIMITS, build_engine, write_checkpoint


@pytest.fixture(scope="module")
def tiny() -> TinyLlama:
    return TinyLlama.make(max_position_embeddings=256)


@pytest.fixture(scope="module")
def engine_dir(tiny: TinyLlama, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_engine(tiny, tiny.config(quant="W8A16"), tmp_path_factory.mktemp("engine"))


@pytest.mark.parametrize("plugin", PLUGINS)
def test_every_plugin_has_a_lowering(plugin: str) -> None:
    module = graph.part(plugin, "cpu")
    assert callable(module.lower) and callable(module.unsupported)


def test_supports_what_it_should(tiny: TinyLlama) -> None:
    for config in (tiny.config(), tiny.config(quant="W8A16"), tiny.config(tp=2, pp=2)):
        assert cpu.unsupported(config, LIMITS) == []


def test_every_reason_at_once(tiny: TinyLlama) -> None:
    limits = replace(LIMITS, tokens_per_block=8, kv_cache_dtype="float8_e4m3fn")
    arch = replace(tiny.arch, activation="swish", rotary_scaling={"rope_type": "mrope"})
    reasons = cpu.unsupported(replace(tiny.config(), arch=arch), limits)
    for part in ("tokens_per_block: 8", "float8_e4m3fn", "'swish'", "'mrope'"):
        assert any(part in reason for reason in reasons), (part, reasons)


def test_unknown_quantization_is_a_reason(tiny: TinyLlama) -> None:
    config = tiny.config()
    call = build_network(config, 0).ops[2]
    assert call.plugin == "linear"
    odd = replace(call, attrs={**call.attrs, "quant": "W4A16_AWQ"})
    assert "W4A16_AWQ" in graph.part("linear", "cpu").unsupported(odd)[0]


def test_weights_permuted_for_an_unknown_gpu_are_a_reason(tiny: TinyLlama) -> None:
    config = replace(tiny.config(quant="W4A16_GPTQ"), dtype="float16")
    quantization = replace(config.quantization, group_size=32)
    config = replace(config, quantization=quantization)
    assert any("no layout" in reason for reason in cpu.unsupported(config, LIMITS))
    assert cpu.unsupported(replace(config, layout="sm80"), LIMITS) == []


def test_kv_cache_is_the_checkpoints(tiny: TinyLlama) -> None:
    config = replace(tiny.config(), quantization=Quantization.of(None, "INT8"))
    assert cpu.unsupported(config, LIMITS) == []
    assert cpu.kv_dtype(config, LIMITS) == "int8"
    (reason,) = cpu.unsupported(config, replace(LIMITS, kv_cache_dtype="float16"))
    assert "the checkpoint has a KV cache of INT8" in reason
    odd = replace(config, quantization=Quantization.of(None, "NVFP4"))
    assert any("'NVFP4'" in reason for reason in cpu.unsupported(odd, LIMITS))


def test_build_refuses_before_writing(tiny: TinyLlama, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tiny, tiny.config(), tmp_path / "checkpoint")
    out = tmp_path / "engine"
    out.mkdir()
    limits = replace(LIMITS, tokens_per_block=16)
    with pytest.raises(UnsupportedError, match="multiple of 32"):
        cpu.build(checkpoint, out, limits=limits, progress=NullProgress())
    assert list(out.iterdir()) == []


def test_fusion_takes_activation_and_residual(tiny: TinyLlama) -> None:
    network = fuse(build_network(tiny.config(), 0))
    kinds = [call.plugin for call in network.ops]
    assert "add" not in kinds and "gated_activation" not in kinds
    assert kinds[1:7] == ["rms_norm", "linear", "attention", "linear", "rms_norm", "linear"]
    qkv, dense, gate_up, proj = [c for c in network.ops if c.plugin == "linear"][:4]
    assert len(qkv.inputs) == 1 and len(dense.inputs) == len(proj.inputs) == 2
    assert gate_up.attrs["fused_activation"] == "silu" and len(gate_up.inputs) == 1
    written = set(network.inputs)
    for call in network.ops:
        assert written.issuperset(call.inputs), call.name
        written.update(call.outputs)


def test_fusion_leaves_sums_over_ranks_alone(tiny: TinyLlama) -> None:
    """The residual is added once, after the allreduce."""
    kinds = [call.plugin for call in fuse(build_network(tiny.config(tp=2), 0)).ops]
    assert kinds.count("add") == 2 * tiny.arch.num_hidden_layers
    assert "gated_activation" not in kinds


def test_fusion_keeps_values_others_read() -> None:
    def call(plugin: str, name: str, *inputs: str) -> OpCall:
        return OpCall(plugin=plugin, name=name, inputs=inputs, outputs=(f"{name}:out",))

    first, second = call("add", "b", "x", "a:out"), call("add", "c", "a:out", "x")
    shared = graph.Network(
        ops=(call("linear", "a", "x"), first, second),
        inputs=("x",),
        outputs=("b:out", "c:out"),
    )  # fmt: skip
    assert fuse(shared) == shared
    output = replace(shared, ops=shared.ops[:2], outputs=("a:out", "b:out"))
    assert fuse(output) == output


def test_config_json(tiny: TinyLlama, engine_dir: Path) -> None:
    config = json.loads((engine_dir / "config.json").read_text())
    assert set(config) == {"version", "pretrained_config", "build_config", "llmc"}
    assert config["pretrained_config"] == tiny.config(quant="W8A16").to_json()
    assert config["build_config"]["max_batch_size"] == LIMITS.max_batch_size
    assert config["build_config"]["plugin_config"]["tokens_per_block"] == LIMITS.tokens_per_block
    assert config["llmc"]["target"] == "cpu"


def test_file_holds_each_tensor_once_in_kernel_layout(engine_dir: Path) -> None:
    file = EngineFile.open(engine_dir / "rank0.engine")
    weight = file.tensors["transformer.layers.0.attention.qkv.weight"]
    assert weight.dtype == "int8" and weight.shape == (4, 2, 2, 16, 16, 2)
    assert file.tensors["lm_head.weight"].dtype == "float32"
    assert not file.tensors["transformer.vocab_embedding.weight"].resident
    ropes = [name for name in file.tensors if name.startswith("rope")]
    assert [name.rpartition(".")[2] for name in ropes] == ["cos", "sin"]
    assert all(tensor.offset % 64 == 0 for tensor in file.tensors.values())


def test_same_input_same_bytes(tiny: TinyLlama, engine_dir: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    checkpoint = Checkpoint.open(engine_dir.parent / "checkpoint")
    cpu.build(checkpoint, again, limits=LIMITS, progress=NullProgress())
    for name in ("config.json", "rank0.engine"):
        assert (again / name).read_bytes() == (engine_dir / name).read_bytes()


def _damage(data: bytes, kind: str) -> bytes:
    if kind == "empty":
        return b""
    if kind == "foreign":
        return b"\x08\0\0\0\0\0\0\0{}" + data
    if kind == "short":
        return data[:-1]
    if kind == "half":
        return data[: len(data) // 2]
    if kind == "long":
        return data + b"\0"
    assert kind == "header"
    return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]


@pytest.mark.parametrize("kind", ("empty", "foreign", "short", "half", "long", "header"))
def test_broken_file_is_one_clear_error(engine_dir: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "rank0.engine"
    path.write_bytes(_damage((engine_dir / "rank0.engine").read_bytes(), kind))
    with pytest.raises(CheckpointError, match=r"rank0\.engine: ") as error:
        EngineFile.open(path)
    assert "\n" not in error.value.message and "llmc build" in error.value.hint


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        EngineFile.open(tmp_path / "rank0.engine")


def test_pack_panels_puts_pairs_where_the_kernels_look() -> None:
    """Element (k, n) of a panel: plugins/csrc/panel.h, paired_offset."""
    weight: Any = np.arange(40 * 70).reshape(40, 70).astype(np.int8)
    packed = pack_panels(weight)
    assert packed.shape == (2, 3, 2, 16, 16, 2)
    for n, k in ((0, 0), (1, 0), (0, 1), (17, 33), (39, 69), (32, 31)):
        column = n % 32
        place = (n // 32, k // 32, column // 16, k % 32 // 2, column % 16, k % 2)
        assert packed[place] == weight[n, k]
    assert packed.sum(dtype=np.int64) == weight.sum(dtype=np.int64)


def test_interleave_halves_pads_each_half() -> None:
    rows: Any = np.arange(2 * 20)
    found = interleave_halves(rows)
    assert found.tolist() == [
        *range(16), *range(20, 36), *range(16, 20), *[0] * 12, *range(36, 40), *[0] * 12,
    ]  # fmt: skip
