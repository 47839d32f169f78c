"""Engines of TensorRT-LLM built where the GPU is, up to the calls into its Python API.

TensorRT-LLM is not installed where these run: a recorder with its signatures stands in for it
(recorded/tensorrt_llm), and nvidia-smi says what it is told.
"""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llmc import artifacts
from llmc.builders.targets import BuildLimits
from llmc.builders.targets.tensorrt_llm import local_build
from llmc.builders.targets.tensorrt_llm.build_config import (
    build_settings,
    lora_arguments,
    plugin_words,
)
from llmc.builders.targets.tensorrt_llm.build_options import BUILD_OPTIONS, PLUGIN_OPTIONS
from llmc.builders.targets.tensorrt_llm.command import build_command
from llmc.builders.targets.tensorrt_llm.local_build import Host, build_engines, find_host, obstacles
from llmc.checkpoint import Checkpoint
from llmc.errors import ToolchainError
from llmc.gate.record import require_passed
from llmc.log import NullProgress
from llmc.model_repo.pbtxt import read_config
from llmc.nvidia import HostGpu, find_gpus
from llmc.recipes.plugins import PluginRecipe
from llmc.recipes.tensorrt_llm import TensorrtLlmTarget
from tests.builders.tiny_hf import write_model
from tests.cli.run import llmc
from tests.gate.built import write_text
from tests.plugins.tiny_llama import TinyLlama
from tests.runtime.cpu_engines import write_checkpoint

RECORDED = Path(__file__).parent / "recorded"
H100 = HostGpu(name="NVIDIA H100", capability=90, memory_gib=80.0, driver="580.95.05")
L40S = HostGpu(name="NVIDIA L40S", capability=89, memory_gib=45.0, driver="580.95.05")


@pytest.fixture(autouse=True)
def forget_host() -> Iterator[None]:
    local_build.find_host.cache_clear()
    yield
    local_build.find_host.cache_clear()


def target(**settings: Any) -> TensorrtLlmTarget:
    return TensorrtLlmTarget.model_validate({"kind": "tensorrt-llm", **settings})


def limits(**plugins: Any) -> BuildLimits:
    return BuildLimits(
        max_batch_size=4,
        max_num_tokens=256,
        max_input_len=128,
        max_seq_len=192,
        tokens_per_block=64,
        kernel_choices=PluginRecipe.model_validate(plugins).kernel_choices,
    )


@pytest.mark.parametrize(
    ("version", "gpus", "settings", "expected"),
    [
        ("1.2.1", (H100,), {}, []),
        ("1.2.0rc6.post3", (H100, H100), {"workers": 2, "gpu": "H200"}, []),
        (
            *(None, (), {}),
            ["TensorRT-LLM is not installed", "no GPU: nvidia-smi lists none"],
        ),
        ("1.1.0", (H100,), {}, ["TensorRT-LLM 1.1.0 is installed, target.version is 1.2"]),
        ("1.2.1", (H100,), {"workers": 2}, ["1 GPUs, target.workers is 2"]),
        (
            *("1.2.1", (H100, L40S), {"workers": 2}),
            ["NVIDIA L40S has compute capability 89, the engine is for 90"],
        ),
        ("1.2.1", (H100, L40S), {"workers": 1}, []),
        (
            *("1.2.1", (H100,), {"gpu": "B200"}),
            ["NVIDIA H100 has compute capability 90, the engine is for 100"],
        ),
    ],
)
def test_why_an_engine_is_built_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
    version: str | None,
    gpus: tuple[HostGpu, ...],
    settings: dict[str, Any],
    expected: list[str],
) -> None:
    monkeypatch.setattr(local_build, "find_host", lambda: Host(version=version, gpus=gpus))
    assert obstacles(target(**settings)) == expected
    # Without a name for the GPU, the one that is here says what is built for.
    here = settings.get("gpu") is None and version is not None and gpus
    assert local_build.capability_of(target()) == (gpus[0].capability if here else 90)


def test_the_api_is_told_what_the_command_says(tmp_path: Path) -> None:
    asked = limits(gemm_plugin="auto", moe_plugin="none", context_fmha=True, manage_weights=True)
    options = target(
        max_beam_width=2,
        strip_plan=True,
        weight_streaming=True,
        timing_cache="t",
        opt_num_tokens=32,
        gather_context_logits=True,
        lora_target_modules=("attn_q", "attn_v"),
        max_lora_rank=16,
    )
    words = build_command(asked, options, "C", "E")
    flags = {name.removeprefix("--"): value for name, value in zip(words, words[1:], strict=False)}
    settings = build_settings(asked, options, tmp_path / "timing.cache")
    assert settings.keys() <= BUILD_OPTIONS.keys()
    for name in ("max_batch_size", "max_num_tokens", "max_input_len", "max_seq_len"):
        assert flags[name] == str(settings[name])
    assert flags["max_beam_width"] == str(settings["max_beam_width"])
    assert flags["opt_num_tokens"] == str(settings["opt_num_tokens"])
    for name in ("weight_streaming", "gather_context_logits"):
        assert settings[name] and f"--{name}" in words
    assert settings["max_prompt_embedding_table_size"] == 0
    assert "--max_prompt_embedding_table_size" not in words
    start = words.index("--lora_target_modules")
    assert words[start : start + 3] == ["--lora_target_modules", "attn_q", "attn_v"]
    assert lora_arguments(options) == {
        "lora_dir": None,
        "lora_ckpt_source": "hf",
        "max_lora_rank": int(flags["max_lora_rank"]),
        "lora_target_modules": ["attn_q", "attn_v"],
    }
    plugins = plugin_words(asked)
    assert plugins == {
        "tokens_per_block": 64,
        "gemm_plugin": "auto",
        "moe_plugin": "disable",
        "context_fmha": "enable",
        "manage_weights": "enable",
    }
    assert plugins.keys() <= PLUGIN_OPTIONS.keys()
    assert settings["input_timing_cache"] is None
    (tmp_path / "timing.cache").touch()
    again = build_settings(asked, options, tmp_path / "timing.cache")
    assert again["input_timing_cache"] == settings["output_timing_cache"]
    assert {name: flags[name] for name in plugins if name != "manage_weights"} == {
        name: str(word) for name, word in plugins.items() if name != "manage_weights"
    }
    assert "--fast_build" in words


def test_nvidia_smi_is_read(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_gpus() == (H100, H100)
    host("NVIDIA H100, MIG 1g, [N/A], [N/A], 580.95.05")
    assert find_gpus() == (
        HostGpu(name="NVIDIA H100, MIG 1g", capability=None, memory_gib=None, driver="580.95.05"),
    )
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_gpus() == ()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with two H100, as far as nvidia-smi goes, and the recorder for TensorRT-LLM."""
    tools = tmp_path / "bin"
    tools.mkdir()

    def say(*lines: str) -> None:
        script = "".join(f"echo '{line}'\n" for line in lines)
        (tools / "nvidia-smi").write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
        (tools / "nvidia-smi").chmod(0o755)

    say(*["NVIDIA H100, 9.0, 81920, 580.95.05"] * 2)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.syspath_prepend(RECORDED)
    return say


@pytest.fixture
def build(
    host: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    model = write_model(tmp_path / "model", hidden_size=128)
    settings = (
        *("build.max_batch_size=4", "build.max_num_tokens=64", "build.plugins.gemm_plugin=auto"),
        *("target.workers=2", "dtype=float16"),
    )
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path / "cache"))
    texts = f'gate.texts=["{write_text(tmp_path / "prose.txt")}"]'
    flags = [word for setting in (*settings, texts) for word in ("--set", setting)]
    return partial(
        llmc,
        *("build", model, "-o", tmp_path / "out", "--target", "tensorrt-llm", "--tp", 2),
        *(*flags, "--json"),
        capsys=capsys,
        monkeypatch=monkeypatch,
    )


def test_every_rank_is_built_by_a_process(build: Any, tmp_path: Path) -> None:
    output = tmp_path / "out"
    done = build()
    assert done.code == 0, done.stderr
    # What the library prints is not among llmc's results.
    stages = [stage["stage"] for stage in json.loads(done.stdout)["stages"]]
    assert stages == ["checkpoint", "engine", "gate", "model_repo"]
    assert not (output / "gpu_build").exists()
    # Its numbers are the checkpoint's, which an engine for the CPU is made of.
    assert "measured on the CPU, from the same checkpoint" in done.stderr
    assert require_passed(output / "engine").measurement.texts[0].divergence is not None
    config = read_config(output / "model_repo" / "tensorrt_llm" / "config.pbtxt")
    assert config.backend == "tensorrtllm"
    assert config.parameters["gpt_model_path"].string_value == str(output / "engine")
    told = [
        json.loads((output / "engine" / f"rank{rank}.engine").read_text(encoding="utf-8"))
        for rank in range(2)
    ]
    assert len({one.pop("process") for one in told}) == 2
    cache = str(output / "timing.cache")
    for rank, one in enumerate(told):
        assert one == {
            "rank": rank,
            "gpu_id": rank,
            "ckpt_dir": str(output / "checkpoint"),
            "settings": {
                "max_batch_size": 4,
                "max_num_tokens": 64,
                "max_input_len": 127,
                "max_seq_len": 128,
                "max_beam_width": 1,
                "opt_num_tokens": None,
                "max_prompt_embedding_table_size": 0,
                "gather_context_logits": False,
                "weight_streaming": False,
                "strongly_typed": True,
                "input_timing_cache": None,
                "output_timing_cache": cache,
            },
            "kv_cache_type": "PAGED",
            "plugins": {"tokens_per_block": 32, "gemm_plugin": "auto"},
            "validated": True,
            "architecture": "LlamaForCausalLM",
            "model_cls": None,
            "kwargs": {
                "logits_dtype": None,
                "lora_dir": None,
                "lora_ckpt_source": "hf",
                "max_lora_rank": 64,
                "lora_target_modules": None,
                "strip_plan": False,
                "refit": False,
            },
        }
    manifest = artifacts.read_manifest(output / "engine")
    assert manifest.tools["tensorrt_llm"] == "1.2.1"
    assert manifest.tools["gpu"] == "NVIDIA H100, 90"
    assert manifest.measured["driver"] == "580.95.05"
    stamp = json.loads((output / "engine" / "build.json").read_text(encoding="utf-8"))
    assert stamp == {
        "tensorrt_llm": "1.2.1",
        "tensorrt": "10.14.1.48",
        "gpu": "NVIDIA H100",
        "compute_capability": 90,
    }
    assert (output / "engine" / "tokenizer.json").is_file()
    done = build()
    assert all(stage["cached"] for stage in json.loads(done.stdout)["stages"])


def test_another_gpu_makes_a_job(build: Any, host: Any, tmp_path: Path) -> None:
    done = build("--compute-capability", 89)
    assert done.code == 0, done.stderr
    assert "NVIDIA H100 has compute capability 90, the engine is for 89" in done.stderr
    assert (tmp_path / "out" / "gpu_build" / "build.sh").is_file()
    done = build("--compute-capability", 89, "--set", "target.build=here")
    assert done.code == 5 and "cannot be built here: NVIDIA H100 has" in done.stderr
    done = build("--set", "target.build=job")
    assert done.code == 0 and not (tmp_path / "out" / "engine").exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RECORDER_RAISES", "no memory", "rank [01]: TensorRT-LLM: RuntimeError: no memory"),
        ("RECORDER_DIES", "1", "rank [01]: the process died"),
    ],
)
def test_what_the_library_says_is_the_error(
    build: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    message: str,
) -> None:
    monkeypatch.setenv(name, value)
    done = build()
    assert done.code == 6 and re.search(message, done.stderr), done.stderr
    assert not (tmp_path / "out" / "engine").exists()


def write_stripped(checkpoint: Checkpoint, directory: Path, *, is_stripped: bool = True) -> Path:
    """Write as much of an engine as a refit reads, with the manifest of a build."""
    directory.mkdir()
    config = {
        "version": "1.2.1",
        "pretrained_config": checkpoint.config.to_json(),
        "build_config": {"use_strip_plan": is_stripped},
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in ("rank0.engine", "rank1.engine", "tokenizer.json"):
        (directory / name).write_text(name, encoding="utf-8")
    artifacts.write_manifest(directory, stage="engine", inputs={}, recipe={}, tools={})
    return directory


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    tiny = TinyLlama.make()
    return write_checkpoint(tiny, tiny.config(tp=2), tmp_path / "checkpoint")


@pytest.fixture
def refit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    return partial(llmc, "refit", capsys=capsys, monkeypatch=monkeypatch)


def test_stripped_engines_are_refitted_in_place(
    host: Any, refit: Any, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    engine = write_stripped(checkpoint, tmp_path / "engine")
    done = refit(engine, checkpoint.directory)
    assert done.code == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        str(engine / f"rank{rank}.engine") for rank in range(2)
    ]
    for rank in range(2):
        assert json.loads((engine / f"rank{rank}.engine").read_text(encoding="utf-8")) == {
            "checkpoint_dir": str(checkpoint.directory),
            "fixed_weights_names": ["rotary_inv_freq"],
        }
    assert artifacts.verify(engine) == []
    assert {*artifacts.read_manifest(engine).files} >= {"tokenizer.json", "config.json"}


def test_what_cannot_be_refitted_is_refused(
    refit: Any, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    whole = write_stripped(checkpoint, tmp_path / "whole", is_stripped=False)
    done = refit(whole)
    assert done.code == 3 and "an engine that has its weights" in done.stderr
    engine = write_stripped(checkpoint, tmp_path / "engine")
    tiny = TinyLlama.make(num_hidden_layers=2)
    other = write_checkpoint(tiny, tiny.config(tp=2), tmp_path / "other")
    done = refit(engine, other.directory)
    layers = checkpoint.config.arch.num_hidden_layers
    assert done.code == 3 and f"num_hidden_layers: 2, the engine has {layers}" in done.stderr
    if find_host().version is None:
        done = refit(engine, checkpoint.directory)
        assert done.code == 5 and "TensorRT-LLM is not installed" in done.stderr
    assert (engine / "rank0.engine").read_text(encoding="utf-8") == "rank0.engine"


def test_the_border_names_what_is_missing(build: Any, tmp_path: Path) -> None:
    assert build("--until", "checkpoint").code == 0
    checkpoint = Checkpoint.open(tmp_path / "out" / "checkpoint")
    with pytest.raises(ToolchainError, match="TensorRT-LLM 1.2.1 is installed, target.version is"):
        build_engines(
            checkpoint,
            tmp_path,
            limits=limits(),
            options=target(version="1.0"),
            progress=NullProgress(),
        )
