"""Engines of several ranks under a real tritonserver: streams equal the single rank's."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmc.model_repo.client import GenerateRequest, generate
from llmc.model_repo.pbtxt import CONFIG_FILE
from llmc.runtime.engine import KvCacheConfig
from llmc.runtime.executor import ExecutorConfig
from llmc.runtime.session import open_session
from tests.builders.families.tiny_families import CASES
from tests.model_repo.served import MAX_SEQ_LEN, Served, build_engine, emit, needs_triton, serve
from tests.runtime.test_comm import mpirun
from tests.runtime.tiny_tokenizers import byte_level, save

pytestmark = [needs_triton, pytest.mark.slow, pytest.mark.mpi]

MAPPINGS: dict[str, dict[str, int]] = {
    "tp2": {"tp": 2},
    "tp4": {"tp": 4},
    "pp2": {"pp": 2},
    "tp2pp2": {"tp": 2, "pp": 2},
}
HEADS: dict[str, int] = {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
PROMPTS = ("the quick brown fox", "naïve 🙂" * 20, "a")
MAX_TOKENS = 24

Build = Callable[[str], Path]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return the output directory of a mapping's engine, built when it is first asked for."""
    mpirun()
    root = tmp_path_factory.mktemp("ranks")

    def output(name: str) -> Path:
        if not (root / name).exists():
            build_engine(root / name, mapping=MAPPINGS.get(name), gate=False, **HEADS)
        return root / name

    return output


@pytest.fixture(scope="module")
def expected(outputs: Build) -> list[list[str]]:
    """Return the pieces of each prompt's stream from one rank, in this process."""
    return of_one_rank(outputs("whole") / "engine")


def of_one_rank(engine_dir: Path) -> list[list[str]]:
    config = ExecutorConfig(kv=KvCacheConfig(max_tokens=4 * MAX_SEQ_LEN))
    with open_session(engine_dir, config) as session:
        return [list(session.generate(prompt, max_tokens=MAX_TOKENS)) for prompt in PROMPTS]


def streams(served: Served, model: str) -> list[list[str]]:
    """Return the pieces of text of each prompt's stream, all asked for at once."""

    def ask(text: str) -> list[str]:
        request = GenerateRequest(text_input=text, max_tokens=MAX_TOKENS)
        answer = generate(served.grpc, request, model=model, timeout_seconds=120)
        return [piece.text for piece in answer if piece.text]

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(ask, PROMPTS))


def num_ranks(served: Served) -> int:
    """Count the processes that are ranks of an engine."""
    family = psutil.Process(served.process.pid).children(recursive=True)
    lines = [" ".join(process.cmdline()[:4]) for process in family]
    return sum("llmc.runtime.rank " in line for line in lines)


@pytest.mark.parametrize("name", MAPPINGS)
def test_leader(outputs: Build, expected: list[list[str]], tmp_path: Path, name: str) -> None:
    """Each rank has a server; rank 0's answers."""
    output = outputs(name)
    emit(output, launch_mode="leader")
    with serve(output, tmp_path / "cache") as served:
        assert streams(served, "ensemble") == expected
        assert streams(served, "tensorrt_llm_bls") == expected
        assert num_ranks(served) == 0
    assert served.process.returncode == 0, served.process.explain()


def write_mixtral(directory: Path) -> Path:
    """Write a tiny Mixtral whose tokenizer knows every byte; nothing it says ends early."""
    tokenizer, case = byte_level(), CASES["mixtral"]
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": MAX_SEQ_LEN}
    dataclasses.replace(case, sizes=case.sizes | sizes).model().save_pretrained(directory)
    save(tokenizer, directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [1]}))
    return directory


def test_expert_parallel_from_the_command_line(tmp_path: Path) -> None:
    """`llmc build --tp 2 --moe-ep 2` of a Mixtral: its repository, served as it was written."""
    mpirun()
    model = write_mixtral(tmp_path / "mixtral")
    limit = f"serve.max_tokens_in_paged_kv_cache={32 * MAX_SEQ_LEN}"
    ranks: dict[str, list[str]] = {"one": [], "ep2": ["--tp", "2", "--moe-ep", "2"]}
    for name, flags in ranks.items():
        command = [sys.executable, "-m", "llmc.cli.main", "build", str(model)]
        command += ["-o", str(tmp_path / name), "--dtype", "float32", "--set", limit, *flags]
        environment = os.environ | {"LLMC_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    with serve(tmp_path / "ep2", tmp_path / "cache") as served:
        assert streams(served, "ensemble") == of_one_rank(tmp_path / "one" / "engine")
    assert served.process.returncode == 0, served.process.explain()


@pytest.fixture(scope="module")
def orchestrated(outputs: Build, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server with a model of each mapping: 2 + 4 + 2 + 4 ranks that its models start."""
    output = outputs("tp2")
    repository = emit(output, launch_mode="orchestrator")
    for name in MAPPINGS:
        copy_model(repository, "tensorrt_llm", f"tensorrt_llm_{name}", name, outputs)
        copy_model(repository, "tensorrt_llm_bls", f"bls_{name}", name, outputs)
    shutil.rmtree(repository / "tensorrt_llm_tp2")
    (repository / "bls_tp2" / CONFIG_FILE).write_text(
        (repository / "bls_tp2" / CONFIG_FILE).read_text().replace("llm_tp2", "llm")
    )
    with serve(output, tmp_path_factory.mktemp("cache")) as served:
        yield served
    assert served.process.returncode == 0, served.process.explain()


def copy_model(repository: Path, old: str, new: str, mapping: str, outputs: Build) -> None:
    """Copy a model under another name, to use the engine, or the model, of `mapping`."""
    shutil.copytree(repository / old, repository / new)
    file = repository / new / CONFIG_FILE
    text = file.read_text()
    changes = {
        f'name: "{old}"': f'name: "{new}"',
        "../engine": f"../../{mapping}/engine",
        'string_value: "tensorrt_llm"': f'string_value: "tensorrt_llm_{mapping}"',
    }
    outputs(mapping)
    for before, after in changes.items():
        text = text.replace(before, after)
    file.write_text(text)


@pytest.mark.parametrize("name", MAPPINGS)
def test_orchestrator(orchestrated: Served, expected: list[list[str]], name: str) -> None:
    """Several models of several ranks each, in one server."""
    assert streams(orchestrated, f"bls_{name}") == expected
    if name == "tp2":
        assert streams(orchestrated, "ensemble") == expected
    worlds: dict[str, Any] = {"tp2": 2, "tp4": 4, "pp2": 2, "tp2pp2": 4}
    assert num_ranks(orchestrated) == sum(worlds.values())
