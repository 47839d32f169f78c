"""`llmc serve` as users run it: a process, its ports, its signals, its end."""

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from llmc.errors import ServeError
from llmc.model_repo.client import GenerateRequest, generate
from tests.model_repo.served import needs_triton

pytestmark = [needs_triton, pytest.mark.slow]

FREE_PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")


def start(repository: Path, cache: Path, *flags: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "llmc.cli.main", "serve", str(repository)]
    return subprocess.Popen(
        [*command, "--cache", str(cache), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def serving(
    repository: Path, cache: Path, *flags: str
) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """Yield a ready `llmc serve` and its gRPC address."""
    process = start(repository, cache, *FREE_PORTS, *flags)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        match = re.match(r"ready: http://\S+ grpc (\S+) metrics http://\S+/metrics$", ready)
        assert match is not None, (ready, process.communicate(timeout=60))
        yield process, match[1]
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def processes_with(text: str) -> list[str]:
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listing.stdout.splitlines() if text in line]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish_and_leaves_nothing(
    served_output: Path, tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "triton.log"
    repository = served_output / "model_repo"
    with serving(repository, tmp_path / "cache", "--log-file", str(log)) as (process, url):
        request = GenerateRequest(text_input="the", max_tokens=300)
        stream = generate(url, request, timeout_seconds=60)
        next(stream)
        process.send_signal(number)
        assert list(stream)[-1].num_output_tokens == 300
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "Started GRPCInferenceService" in log.read_text()
    assert processes_with(f"{tmp_path / 'cache'}") == []
    assert list(Path("/dev/shm").glob(f"llmc_{process.pid}_*")) == []


def test_a_second_signal_ends_it_at_once(served_output: Path, tmp_path: Path) -> None:
    repository = served_output / "model_repo"
    with serving(repository, tmp_path / "cache", "--drain", "120") as (process, url):

        def keep_busy() -> None:
            """Streams that follow each other keep the server from ever being drained."""
            request = GenerateRequest(text_input="the", max_tokens=500)
            with contextlib.suppress(ServeError):
                while True:
                    list(generate(url, request, timeout_seconds=60))

        busy = threading.Thread(target=keep_busy)
        busy.start()
        time.sleep(0.5)
        process.terminate()
        time.sleep(2.0)
        assert process.poll() is None
        process.terminate()
        process.communicate(timeout=20)
        busy.join(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert processes_with(f"{tmp_path / 'cache'}") == []


def test_a_server_that_fails_shows_its_log(served_output: Path, tmp_path: Path) -> None:
    broken = tmp_path / "out"
    shutil.copytree(served_output, broken)
    (broken / "engine" / "rank0.engine").write_bytes(b"not an engine")
    flags = (*FREE_PORTS, "--allow-ungated")
    process = start(broken / "model_repo", tmp_path / "cache", *flags)
    stdout, stderr = process.communicate(timeout=120)
    assert (process.returncode, stdout) == (7, "")
    assert "error: tritonserver ended with code 1 before it was ready" in stderr
    assert "rank0.engine" in stderr and "Traceback" not in stderr
    assert processes_with(f"{tmp_path / 'cache'}") == []


def test_a_model_that_crashes_ends_the_server(served_output: Path, tmp_path: Path) -> None:
    """Triton itself would go on being "ready" and leave open streams silent."""
    with serving(served_output / "model_repo", tmp_path / "cache") as (process, _):
        models = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if any(part.endswith("tensorrt_llm/1/model.py") for part in child.cmdline())
        ]
        assert len(models) == 1
        models[0].kill()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 7
    assert "error: the process of tensorrt_llm ended" in stderr
    assert processes_with(f"{tmp_path / 'cache'}") == []


def test_mistakes_are_found_before_the_server_starts(served_output: Path, tmp_path: Path) -> None:
    def fail(repository: Path, *flags: str) -> tuple[int, str]:
        process = start(repository, tmp_path / "cache", *flags)
        _, stderr = process.communicate(timeout=60)
        return process.returncode, stderr

    code, stderr = fail(tmp_path / "nothing")
    assert code == 3 and "no directory, expected a model repository" in stderr
    broken = tmp_path / "out"
    shutil.copytree(served_output, broken)
    (broken / "engine" / "gate.json").unlink()
    code, stderr = fail(broken / "model_repo")
    assert code == 8 and f"{broken}/engine: never passed the quality gate" in stderr
    (broken / "model_repo" / "tensorrt_llm" / "config.pbtxt").write_text("name: ${name}")
    code, stderr = fail(broken / "model_repo")
    assert code == 6 and "tensorrt_llm/config.pbtxt:1:7" in stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, stderr = fail(served_output / "model_repo", *FREE_PORTS[2:], "--http-port", port)
    assert code == 7 and f"--http-port: 127.0.0.1:{port}: Address already in use" in stderr
    code, stderr = fail(served_output / "model_repo", "--tritonserver", "/nonexistent")
    assert code == 5 and "--tritonserver: /nonexistent is no executable file" in stderr
