"""Ctrl-C while TensorRT builds a plan: nothing is left, neither directory nor process."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.builders.tiny_hf import write_model

pytest.importorskip("tensorrt_rtx_bindings", reason="needs llmc[rtx]")

SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 24}
"""TensorRT takes seconds for these, so that the signal comes while it builds."""


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_ctrl_c_ends_a_build_and_leaves_nothing(tmp_path: Path) -> None:
    model, out = write_model(tmp_path / "model", **SIZES), tmp_path / "out"
    options = ["--target", "tensorrt-rtx", "--compute-capability", "89", "--weights", "refit"]
    command = [sys.executable, "-m", "llmc.cli.main", "build", str(model), "-o", str(out)]
    process = subprocess.Popen(
        [*command, *options, "--dtype", "float16", "--until", "engine"],
        stderr=subprocess.PIPE,
        # A shell that runs the tests in the background lets them, and so the command, ignore it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while not list(out.glob("engine.tmp-*/*.engine")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (worker,) = children(process.pid)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in stderr, stderr
    assert not list(out.glob("engine*"))
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
