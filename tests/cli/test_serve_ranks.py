"""Ranks that are killed, stopped or broken under `llmc serve`: errors in time, nothing left."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmc.errors import ServeError
from llmc.model_repo.client import GeneratePiece, GenerateRequest, generate
from llmc.model_repo.model_processes import is_alive
from tests.cli.test_serve import FREE_PORTS, processes_with, start
from tests.model_repo.leftovers import Owned
from tests.model_repo.served import build_engine, emit, needs_triton
from tests.runtime.test_comm import mpirun, second_mpirun

pytestmark = [needs_triton, pytest.mark.slow, pytest.mark.mpi]

RANK_TIMEOUT_S = 3.0
LATEST_SECONDS = RANK_TIMEOUT_S + 40
"""When a client must know: the timeout, and patience with a machine that does other things."""
RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
OWNED: dict[int, Owned] = {}
"""`llmc serve`, by pid → what its processes had whenever it was ready."""
ONE_AT_A_TIME: dict[str, Any] = {
    "max_tokens_in_paged_kv_cache": 480,
    "batch_scheduler_policy": "guaranteed_no_evict",
}
"""A long request fills the KV cache: those after it wait for its blocks."""
LONG = GenerateRequest(text_input="the", max_tokens=450, end_id=-1)
SHORT = GenerateRequest(text_input="the", max_tokens=8)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mpirun()
    output = tmp_path_factory.mktemp("ranks") / "out"
    # A long request takes seconds: time to find a rank and end it meanwhile.
    build_engine(output, mapping={"tp": 2}, gate=False, num_hidden_layers=16)
    return output


@contextlib.contextmanager
def serving(output: Path, tmp_path: Path, *flags: str) -> "Iterator[subprocess.Popen[str]]":
    """Run `llmc serve` for as long as the block; nothing of it may be left afterwards."""
    more = ("--allow-ungated", "--log-file", str(tmp_path / "log"), *flags)
    process = start(output / "model_repo", tmp_path / "cache", *FREE_PORTS, *more)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert wait_until(lambda: processes_with(str(tmp_path)) == []), processes_with(str(tmp_path))
    left = set(os.listdir("/dev/shm"))
    assert not [name for name in left if name.startswith(f"llmc_{process.pid}_")]
    OWNED.pop(process.pid, Owned()).require_nothing_left()


def wait_until(condition: "object", seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def address(process: "subprocess.Popen[str]") -> str:
    """Wait until it is ready, and return where to ask."""
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.match(r"ready: http://\S+ grpc (\S+) ", line)
    assert match is not None, (line, process.communicate(timeout=150))
    owned = OWNED.setdefault(process.pid, Owned())
    owned.look(process.pid)
    assert any(not name.startswith("llmc_") for name in owned.memory), "MPI's own"
    return match[1]


def find_rank(process: "subprocess.Popen[str]", rank: int) -> psutil.Process:
    """Return the process that is this rank of the engine."""
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            line = " ".join(child.cmdline())
            environment = child.environ()
            number = next((environment[n] for n in RANK_VARIABLES if n in environment), None)
            model = "tensorrt_llm/1/model.py" in line
            if number == str(rank) and (model or "-m llmc.runtime.rank" in line):
                return child
    raise AssertionError(f"no rank {rank}")


class Client(threading.Thread):
    """Asks in a thread of its own; keeps what comes back, and how it ends."""

    def __init__(
        self,
        url: str,
        request: GenerateRequest,
        *,
        model: str = "ensemble",
        retry_seconds: float = 0.0,
    ) -> None:
        super().__init__(daemon=True)
        self.model = model
        self.url, self.request, self.retry_seconds = url, request, retry_seconds
        self.pieces: list[GeneratePiece] = []
        self.error: str | None = None
        self.start()

    def run(self) -> None:
        try:
            answer = generate(
                self.url,
                self.request,
                model=self.model,
                timeout_seconds=120,
                retry_seconds=self.retry_seconds,
            )
            for piece in answer:
                self.pieces.append(piece)
        except ServeError as error:
            self.error = error.message

    def wait_for_tokens(self) -> None:
        assert wait_until(lambda: len(self.pieces) > 3 or self.error), "nothing comes"
        assert self.error is None

    def end(self) -> str | None:
        """Return its error, once it has ended."""
        self.join(LATEST_SECONDS)
        assert not self.is_alive(), "the client still waits"
        return self.error


def test_leader_ranks_that_are_killed_or_stopped(output: Path, tmp_path: Path) -> None:
    """Every client is told which rank; --restart brings the job back, as often as it says.

    Requests that had not begun are sent again by their clients, and answered by the new job.
    """
    emit(output, launch_mode="leader", rank_timeout_s=RANK_TIMEOUT_S, **ONE_AT_A_TIME)
    with serving(output, tmp_path, "--restart", "1") as process:
        url = address(process)
        whole = [piece.text for piece in generate(url, SHORT, timeout_seconds=60)]
        running = Client(url, LONG, retry_seconds=120)
        running.wait_for_tokens()
        waiting = [Client(url, SHORT, retry_seconds=120) for _ in range(2)]
        given_up = Client(url, SHORT)
        time.sleep(0.5)
        assert not any(client.pieces for client in (*waiting, given_up))
        first = find_rank(process, 1)
        first.kill()
        for client in (running, given_up):
            assert re.search(rf"rank 1 \(pid {first.pid} on \S+\) ended", client.end() or "")
        assert address(process) == url
        for client in waiting:
            assert client.end() is None and [piece.text for piece in client.pieces] == whole
        client = Client(url, LONG)
        client.wait_for_tokens()
        find_rank(process, 1).suspend()
        assert re.search(r"rank 1 \(.*\) has not answered for 3 s", client.end() or "")
        _, stderr = process.communicate(timeout=150)
        assert process.returncode == 7
        assert "starting the server again" in stderr, stderr
        assert re.search(r"rank 1 \(.* has not answered", stderr), stderr


def test_a_leader_that_is_stopped(output: Path, tmp_path: Path) -> None:
    """Rank 0 can tell nobody, so the ranks that follow it end the job, and the server with it."""
    emit(output, launch_mode="leader", rank_timeout_s=RANK_TIMEOUT_S)
    with serving(output, tmp_path) as process:
        client = Client(address(process), LONG)
        client.wait_for_tokens()
        find_rank(process, 0).suspend()
        assert client.end() is not None
        _, stderr = process.communicate(timeout=150)
        assert process.returncode == 7
        assert "the process that schedules the ranks has not answered" in stderr


def test_orchestrated_ranks_are_started_again_and_what_waits_is_served(
    output: Path, tmp_path: Path
) -> None:
    emit(
        output,
        launch_mode="orchestrator",
        rank_timeout_s=RANK_TIMEOUT_S,
        max_rank_restarts=2,
        **ONE_AT_A_TIME,
    )
    with serving(output, tmp_path) as process:
        url = address(process)
        whole = [piece.text for piece in generate(url, SHORT, timeout_seconds=60)]

        def lose(rank: int, signal_number: signal.Signals) -> str | None:
            """Take a rank away from one that runs and two that wait; return the former's error."""
            running = Client(url, LONG)
            running.wait_for_tokens()
            waiting = [Client(url, SHORT) for _ in range(2)]
            time.sleep(0.5)
            assert running.error is None and not any(client.pieces for client in waiting)
            find_rank(process, rank).send_signal(signal_number)
            error = running.end()
            for client in waiting:
                client.join(60)
                assert client.error is None and [p.text for p in client.pieces] == whole
            return error

        assert re.search(r"rank 1 \(pid \d+ on \S+\) ended", lose(1, signal.SIGKILL) or "")
        assert re.search(r"rank 0 \(.*\) has not answered", lose(0, signal.SIGSTOP) or "")
        client = Client(url, LONG)
        client.wait_for_tokens()
        find_rank(process, 1).kill()
        waiting = Client(url, SHORT)
        assert re.search(r"rank 1 \(.*\) ended", client.end() or "")
        assert re.search(r"rank 1 \(.*\) ended", waiting.end() or "")
        _, stderr = process.communicate(timeout=150)
        assert process.returncode == 7
        assert re.search(r"error: .*the engine failed: .*rank 1 \(.*\) ended", stderr, re.DOTALL)


@pytest.mark.parametrize("mode", ["leader", "orchestrator"])
def test_a_rank_that_cannot_load_its_file(output: Path, tmp_path: Path, mode: str) -> None:
    """Damaged at the same size, so that only the rank itself can find it."""
    broken = tmp_path / "out"
    shutil.copytree(output, broken)
    emit(broken, launch_mode=mode, rank_timeout_s=RANK_TIMEOUT_S)
    file = broken / "engine" / "rank1.engine"
    file.write_bytes(file.read_bytes()[:-10] + b"0" * 10)
    with serving(broken, tmp_path) as process:
        _, stderr = process.communicate(timeout=150)
    assert process.returncode == 7
    assert re.search(r"rank 1 .*: .*rank1\.engine: its header is damaged", stderr), stderr


def test_a_file_that_was_cut_short_is_found_before_a_start(output: Path, tmp_path: Path) -> None:
    broken = tmp_path / "out"
    shutil.copytree(output, broken)
    emit(broken, launch_mode="leader")
    file = broken / "engine" / "rank1.engine"
    file.write_bytes(file.read_bytes()[:-1000])
    with serving(broken, tmp_path) as process:
        _, stderr = process.communicate(timeout=150)
    assert process.returncode == 7
    assert "rank 1: " in stderr and "not the file of this build's manifest" in stderr


@pytest.mark.parametrize("mode", ["leader", "orchestrator"])
def test_llmc_itself_may_be_killed(output: Path, tmp_path: Path, mode: str) -> None:
    emit(output, launch_mode=mode, rank_timeout_s=RANK_TIMEOUT_S)
    with serving(output, tmp_path) as process:
        client = Client(address(process), LONG)
        client.wait_for_tokens()
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) > 8
        process.kill()
        process.communicate()
        assert client.end() is not None
        gone, alive = psutil.wait_procs(family, timeout=20)
        assert alive == []


def test_another_mpi(output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session under Open MPI, to the end of a rank."""
    launcher = second_mpirun(monkeypatch)
    emit(output, launch_mode="leader", rank_timeout_s=RANK_TIMEOUT_S)
    with serving(output, tmp_path, "--launcher", str(launcher)) as process:
        url = address(process)
        assert len(list(generate(url, SHORT, timeout_seconds=60))) == 8
        client = Client(url, LONG)
        client.wait_for_tokens()
        find_rank(process, 1).kill()
        assert re.search(r"rank 1 \(pid \d+ on \S+\) ended", client.end() or "")
        _, stderr = process.communicate(timeout=150)
    assert process.returncode == 7
    assert re.search(r"rank 1 \(.*\) ended; all ranks end", stderr), stderr


@pytest.mark.parametrize(
    ("second", "model"), [(False, "ensemble"), (False, "tensorrt_llm_bls"), (True, "ensemble")]
)
def test_started_by_hand_it_ends_when_it_is_told_to(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: bool, model: str
) -> None:
    """Triton does not get beyond its exit timeout while a stream is open."""
    launcher = ("--launcher", str(second_mpirun(monkeypatch))) if second else ()
    emit(output, launch_mode="leader", rank_timeout_s=RANK_TIMEOUT_S)
    with serving(output, tmp_path, "--dry-run", "--drain", "2", *launcher) as process:
        line, _ = process.communicate(timeout=150)
    http, grpc = (re.search(rf"--{name}-port=(\d+)", line) for name in ("http", "grpc"))
    assert http is not None and grpc is not None
    with (tmp_path / "by-hand").open("w") as file:
        server = subprocess.Popen(shlex.split(line), stdout=file, stderr=file)
    owned = Owned()
    try:
        assert wait_until(lambda: answers(f"http://127.0.0.1:{http[1]}/v2/health/ready"), 150)
        owned.look(server.pid)
        Client(f"127.0.0.1:{grpc[1]}", LONG, model=model).wait_for_tokens()
        server.terminate()
        server.wait(60)
        # A rank whose peers do not come to the end of MPI with it waits for them for 30 s.
        assert wait_until(lambda: not any(map(is_alive, owned.processes)), 45), owned.left()
    finally:
        for process_left in filter(is_alive, owned.processes):
            process_left.kill()
        # Without a guard it stays.
        for name in owned.memory:
            Path("/dev/shm", name).unlink(missing_ok=True)


def answers(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1.0) as answer:
        return bool(answer.status == 200)
    return False


def test_the_command_line_is_printed(output: Path, tmp_path: Path) -> None:
    emit(output, launch_mode="leader")
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\n")
    with serving(output, tmp_path, "--dry-run") as process:
        stdout, _ = process.communicate(timeout=150)
    assert process.returncode == 0
    assert " -n 1 " in stdout and " : -n 1 " in stdout and "--load-model=tensorrt_llm" in stdout
    with serving(output, tmp_path, "--dry-run", "--hostfile", str(hosts)) as process:
        _, stderr = process.communicate(timeout=150)
    assert process.returncode == 7
    assert f"{hosts} has slots for 1 ranks, the engine has 2" in stderr
