"""Engines of several ranks under a real tritonserver: streams equal the single rank's."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

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
"""Of a Llama, built through the library."""
EXPERTS: dict[str, tuple[str, ...]] = {
    "ep2": ("--tp", "2", "--moe-ep", "2"),
    "tp2ep2": ("--tp", "4", "--moe-ep", "2"),
}
"""Of a Mixtral, built by the command line with these flags."""
WORLDS = {"tp2": 2, "tp4": 4, "pp2": 2, "tp2pp2": 4, "ep2": 2, "tp2ep2": 4}
HEADS: dict[str, int] = {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
PROMPTS = ("the quick brown fox", "naïve 🙂" * 20, "a")
MAX_TOKENS = 24

Build = Callable[[str], Path]
Expected = Callable[[str], list[list[str]]]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return the output directory of a mapping's engine, built when it is first asked for."""
    mpirun()
    root = tmp_path_factory.mktemp("ranks")

    def output(name: str) -> Path:
        if (root / name).exists():
            pass
        elif name in EXPERTS or name == "experts":
            build_experts(root, name, *EXPERTS.get(name, ()))
        else:
            build_engine(root / name, mapping=MAPPINGS.get(name), gate=False, **HEADS)
        return root / name

    return output


def build_experts(root: Path, name: str, *flags: str) -> None:
    """Run `llmc build` with `flags` on a tiny Mixtral: engines, gate, a repository to serve."""
    model = root / "mixtral"
    if not model.exists():
        tokenizer, case = byte_level(), CASES["mixtral"]
        sizes = {
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": MAX_SEQ_LEN,
        }
        dataclasses.replace(case, sizes=case.sizes | sizes).model().save_pretrained(model)
        save(tokenizer, model)
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [1]}))
    limit = f"serve.max_tokens_in_paged_kv_cache={32 * MAX_SEQ_LEN}"
    command = [sys.executable, "-m", "llmc.cli.main", "build", str(model), "-o", str(root / name)]
    done = subprocess.run(
        [*command, "--dtype", "float32", "--set", limit, *flags],
        env=os.environ | {"LLMC_CACHE": str(root / "cache")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def expected(outputs: Build) -> Expected:
    """Return, for a mapping, the pieces of each prompt's stream from one rank in this process."""
    config = ExecutorConfig(kv=KvCacheConfig(max_tokens=4 * MAX_SEQ_LEN))

    @cache
    def of_one_rank(name: str) -> list[list[str]]:
        with open_session(outputs(name) / "engine", config) as session:
            return [list(session.generate(prompt, max_tokens=MAX_TOKENS)) for prompt in PROMPTS]

    return lambda name: of_one_rank("experts" if name in EXPERTS else "whole")


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


@pytest.mark.parametrize("name", WORLDS)
def test_leader(outputs: Build, expected: Expected, tmp_path: Path, name: str) -> None:
    """Each rank has a server; rank 0's answers."""
    output = outputs(name)
    # Triton warms the model up in the server of every rank.
    emit(output, launch_mode="leader", warmup_prompt_tokens=16)
    with serve(output, tmp_path / "cache") as served:
        assert streams(served, "ensemble") == expected(name)
        assert streams(served, "tensorrt_llm_bls") == expected(name)
        assert num_ranks(served) == 0
    assert served.process.returncode == 0, served.process.explain()


@pytest.fixture(scope="module", params=[MAPPINGS, EXPERTS], ids=["llama", "mixtral"])
def orchestrated(
    request: pytest.FixtureRequest, outputs: Build, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, list[str]]]:
    """One server with a model of each mapping of a family, which starts its ranks; the mappings."""
    first, *others = names = list(request.param)
    output = outputs(first)
    repository = emit(output, launch_mode="orchestrator", warmup_prompt_tokens=16)
    for name in others:
        copy_model(repository, "tensorrt_llm", f"tensorrt_llm_{name}", name, outputs)
        copy_model(repository, "tensorrt_llm_bls", f"bls_{name}", name, outputs)
    with serve(output, tmp_path_factory.mktemp("cache")) as served:
        yield served, names
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


def test_orchestrator(orchestrated: tuple[Served, list[str]], expected: Expected) -> None:
    """Several models of several ranks each, in one server."""
    served, (first, *others) = orchestrated
    models = {"ensemble": first, "tensorrt_llm_bls": first} | {f"bls_{n}": n for n in others}
    for model, name in models.items():
        assert streams(served, model) == expected(name), model
    assert num_ranks(served) == sum(WORLDS[name] for name in (first, *others))
