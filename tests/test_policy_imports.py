"""Who imports whom, what help costs, and that every module stands alone."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmc.cli import COMMANDS

ROOT = Path(__file__).parents[1]
HEAVY = (
    *("torch", "numpy", "ml_dtypes", "tokenizers", "transformers", "jinja2", "yaml"),
    *("tritonclient", "grpc", "google.protobuf", "mpi4py", "gguf", "psutil"),
    *("llmc.builders", "llmc.runtime", "llmc.model_repo", "llmc.plugins", "llmc.recipes"),
)

THIRD_PARTY = (
    *("numpy", "ml_dtypes", "torch", "tokenizers", "jinja2", "pydantic", "yaml", "typer", "rich"),
    *("tritonclient.grpc", "google.protobuf.text_format", "psutil", "mpi4py"),
)

# Every module is imported in a process of its own, forked from one that has the packages of others.
IMPORT_EACH = """
import importlib.util, os, sys, traceback
for package in sys.argv[1].split(","):
    if importlib.util.find_spec(package.split(".")[0]):
        importlib.import_module(package)
failed = False
for name in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            print("cannot import", name, "alone")
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
            os._exit(1)
        os._exit(0)
    failed |= os.waitpid(child, 0)[1] != 0
sys.exit(failed)
"""


def modules() -> list[str]:
    found = []
    for root, folders, names in os.walk(ROOT / "llmc", followlinks=True):
        folders[:] = [name for name in folders if (Path(root) / name / "__init__.py").exists()]
        for name in names:
            if name.endswith(".py"):
                parts = (Path(root) / name).relative_to(ROOT).with_suffix("").parts
                found.append(".".join(parts).removesuffix(".__init__"))
    return sorted(found)


def test_imports_go_down_the_layers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kept, 0 broken" in done.stdout


@pytest.mark.slow
def test_every_module_imports_alone() -> None:
    names = modules()
    assert {"llmc.cli.main", "llmc.builders.pipeline", "llmc.recipes.loader"} <= set(names)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH, ",".join(THIRD_PARTY), *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_fast_and_imports_nothing_heavy(command: str) -> None:
    script = (
        "import sys\n"
        "from llmc.cli.main import main\n"
        f"sys.argv = ['llmc', *{command.split()!r}, '--help']\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    seconds = time.monotonic() - started
    assert done.stdout.rstrip().endswith("HEAVY []"), done.stdout[-200:]
    # About 0.4 s on an idle core; the rest is for a busy one.
    assert seconds < 5
    assert "llmc " + command in done.stdout
