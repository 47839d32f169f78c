"""A tiny model of two ranks and what a host needs to run it: for scripts that are run for real."""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

import llmc
from llmc.builders import pipeline
from llmc.log import NullProgress
from llmc.model_repo.emit import emit_repository
from llmc.model_repo.tritonserver import find_tritonserver
from llmc.recipes.schema import Recipe
from llmc.runtime.engine import KvCacheConfig
from llmc.runtime.executor import ExecutorConfig
from llmc.runtime.session import open_session
from tests.builders.tiny_hf import write_model
from tests.model_repo.served import options

PROMPT, NUM_TOKENS = "w7 w8 w9", 12
READY_SECONDS = 120.0


def build(root: Path, *, tp: int) -> Path:
    """Build a model and emit its repository; return `root`/tp<tp>/model_repo."""
    if not (root / "model").exists():
        write_model(root / "model")
        (root / "model/generation_config.json").write_text("{}")
        (root / "model/tokenizer_config.json").write_text("{}")
    recipe = Recipe.model_validate(
        {"model": str(root / "model"), "mapping": {"tp": tp}, "build": {"max_batch_size": 4}}
    )
    output = root / f"tp{tp}"
    pipeline.build(recipe, output, until="engine", progress=NullProgress(), report=lambda _: None)
    repository = output / "model_repo"
    repository.mkdir()
    emit_repository(output / "engine", repository, options(max_tokens_in_paged_kv_cache=512))
    return repository


def expected_text(root: Path) -> str:
    """Return the answer of one rank, in this process."""
    engine = build(root, tp=1).parent / "engine"
    config = ExecutorConfig(kv=KvCacheConfig(max_tokens=512))
    with open_session(engine, config) as session:
        return "".join(session.generate(PROMPT, max_tokens=NUM_TOKENS))


def write_programs(root: Path) -> dict[str, str]:
    """Put `tritonserver` and `llmc` on a PATH of their own; return the environment with it.

    No gate has seen the tiny engine: this llmc serves it all the same.
    """
    server = find_tritonserver(None, cache=root / "cache")
    environment = server.environment()
    flags = f" --backend-directory={server.backend_dir}" if server.backend_dir else ""
    programs = {
        "tritonserver": [
            f"export LD_LIBRARY_PATH={environment.get('LD_LIBRARY_PATH', '')}",
            f'exec {server.binary}{flags} "$@"',
        ],
        "llmc": [
            f"export PYTHONPATH={Path(llmc.__file__).parent.parent}",
            f'exec {sys.executable} -m llmc.cli.main "$@" --allow-ungated',
        ],
    }
    folder = root / "bin"
    folder.mkdir()
    for name, lines in programs.items():
        (folder / name).write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
        (folder / name).chmod(0o755)
    return environment | {"PATH": f"{folder}:{environment['PATH']}", "LLMC_CACHE": f"{root}/cache"}


ASK = """
import json, sys, urllib.request
url, body = sys.argv[1:]
request = urllib.request.Request(url, body.encode() or None)
with urllib.request.urlopen(request, timeout=30) as answer:
    print(answer.read().decode())
"""


def ask(url: str, body: str = "", *, prefix: tuple[str, ...] = ()) -> str | None:
    """Return what `url` answers, None for an error; `prefix` runs a command line elsewhere."""
    command = [sys.executable, "-c", ASK, url, body]
    if prefix:
        command = [*prefix, shlex.join(command)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 else None


def wait_until_ready(
    base: str, ended: Callable[[], str | None], *, prefix: tuple[str, ...] = ()
) -> None:
    """Wait for every model; `ended` says why there is nothing to wait for any more."""
    deadline = time.monotonic() + READY_SECONDS
    while ask(f"{base}/v2/health/ready", prefix=prefix) is None:
        why = ended()
        assert why is None and time.monotonic() < deadline, why
        time.sleep(0.5)


def require_nothing_left(path: Path) -> None:
    """Wait for the end of every process that was given something below `path`."""
    deadline = time.monotonic() + 30
    while left := [process for process in psutil.process_iter() if names(process, str(path))]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def names(process: psutil.Process, path: str) -> bool:
    try:
        return any(path in argument for argument in process.cmdline())
    except psutil.Error:
        return False


def streamed(base: str, *, prefix: tuple[str, ...] = ()) -> list[str]:
    """Return the pieces of a streamed answer to PROMPT."""
    body = {
        "text_input": PROMPT,
        "max_tokens": NUM_TOKENS,
        "stream": True,
        "exclude_input_in_output": True,
    }
    url = f"{base}/v2/models/ensemble/generate_stream"
    answer = ask(url, json.dumps(body), prefix=prefix)
    assert answer is not None
    lines = [line for line in answer.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: "))["text_output"] for line in lines]
