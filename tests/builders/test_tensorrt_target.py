"""The target tensorrt: what it refuses, by version, GPU and host."""

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmc.builders.targets import BuildLimits, tensorrt
from llmc.builders.targets.tensorrt_capabilities import REFUSED_BY_TENSORRT
from llmc.builders.targets.tensorrt_module import NEEDED, missing
from llmc.builders.targets.tensorrt_rtx_module import import_tensorrt_rtx
from llmc.checkpoint import CheckpointConfig, Quantization
from llmc.errors import ToolchainError
from llmc.mapping import Mapping
from llmc.quant import FORMATS
from llmc.recipes.schema import TensorrtTarget
from tests.builders.tiny_hf import write_model
from tests.cli.run import llmc
from tests.plugins.tiny_llama import TinyLlama

LIMITS = BuildLimits(
    max_batch_size=4, max_num_tokens=64, max_input_len=63, max_seq_len=64, tokens_per_block=32
)

LACKED = {
    "10.15.1.29": {
        "INetworkDefinition.add_attention_v2",
        "IAttention.key_value_lengths",
        "INetworkDefinition.add_dist_collective",
    },
    "10.16.1.11": {"INetworkDefinition.add_attention_v2", "IAttention.key_value_lengths"},
    "11.0.0.114": set(),
}
"""Version → what of NEEDED its Python bindings lack: read off tensorrt_cu13_bindings."""

needs_no_tensorrt = pytest.mark.skipif(
    find_spec("tensorrt") is not None, reason="is about a machine without TensorRT"
)


@pytest.fixture(scope="module")
def config() -> CheckpointConfig:
    tiny = TinyLlama.make(hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    config: CheckpointConfig = tiny.config(tp=2)
    return replace(config, dtype="float16")


def target(**changes: Any) -> TensorrtTarget:
    return TensorrtTarget(kind="tensorrt", **changes)


def bindings(version: str) -> Any:
    """A module with as much of NEEDED as a version has."""
    owners: dict[str, dict[str, None]] = {"INetworkDefinition": {}, "IAttention": {}}
    for name in NEEDED.keys() - LACKED[version]:
        owner, attribute = name.split(".")
        owners[owner][attribute] = None
    classes = {owner: type(owner, (), attributes) for owner, attributes in owners.items()}
    return SimpleNamespace(__version__=version, **classes)


@pytest.mark.parametrize("version", LACKED)
def test_what_a_version_lacks_is_named(config: CheckpointConfig, version: str) -> None:
    reasons = list(missing(bindings(version), config))
    assert len(reasons) == len(LACKED[version])
    for name in LACKED[version]:
        assert any(f"TensorRT {version} has no {name}, needed for" in line for line in reasons)


def test_one_rank_needs_no_collectives(config: CheckpointConfig) -> None:
    one = replace(config, mapping=Mapping())
    assert not any("collective" in line for line in missing(bindings("10.15.1.29"), one))


def test_tensorrt_for_rtx_has_the_same_layers(config: CheckpointConfig) -> None:
    pytest.importorskip("tensorrt_rtx_bindings", reason="needs llmc[rtx]")
    nvfp4 = replace(config, quantization=Quantization.of("NVFP4", None))
    assert list(missing(import_tensorrt_rtx(), nvfp4)) == []


@pytest.mark.parametrize("algo", FORMATS)
@pytest.mark.parametrize("capability", [75, 80, 90, 100, 120])
def test_every_quantization_builds_or_has_a_reason(
    config: CheckpointConfig, algo: str, capability: int
) -> None:
    layout = "sm80" if algo == "W4A16_GPTQ" else None
    quantized = replace(
        config,
        quantization=Quantization.of(algo, None),
        layout=layout,
        mapping=Mapping(),
    )
    reasons = tensorrt.unsupported(quantized, LIMITS, target(compute_capability=capability))
    known = REFUSED_BY_TENSORRT.get(algo, {})
    if capability in known:
        assert any(known[capability] in reason for reason in reasons)
    else:
        assert reasons == []


def test_hopper_has_fp8_and_blackwell_nvfp4() -> None:
    assert 80 in REFUSED_BY_TENSORRT["FP8"] and 90 not in REFUSED_BY_TENSORRT["FP8"]
    assert 90 in REFUSED_BY_TENSORRT["NVFP4"] and 100 not in REFUSED_BY_TENSORRT["NVFP4"]


@needs_no_tensorrt
def test_without_tensorrt_it_says_what_to_install_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ToolchainError, match="TensorRT cannot be imported") as caught:
        tensorrt.check_host(target())
    assert "on a host with an NVIDIA GPU: pip install tensorrt" in caught.value.hint
    run = partial(llmc, capsys=capsys, monkeypatch=monkeypatch)
    model = write_model(tmp_path / "model")
    options = ("--target", "tensorrt", "--compute-capability", "90", "--dtype", "float16")
    done = run("build", model, "-o", tmp_path / "out", *options, "--until", "engine")
    assert done.code == 5, done.stderr
    assert "TensorRT cannot be imported" in done.stderr
    assert not (tmp_path / "out" / "checkpoint").exists(), "work was done before the refusal"
