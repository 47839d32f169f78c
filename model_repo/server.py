"""One tritonserver, or one for each rank: start, wait until ready, stop with requests drained.

The server runs in a session of its own, so that a Ctrl-C meant for llmc does not reach it
half-way, and under a guard (guard.py), so that nothing of it is left when it, or llmc, has ended.
"""

import contextlib
import logging
import os
import shlex
import subprocess
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from llmc.errors import BuildError, ServeError
from llmc.model_repo.launchers import Job, Launcher, Program, command_line
from llmc.model_repo.metrics import read_metrics
from llmc.model_repo.model_processes import (
    FOLLOWER_FLAG,
    find_model_processes,
    find_servers,
    is_alive,
    is_stopped,
)
from llmc.model_repo.mpi import guarded
from llmc.model_repo.orchestrator import ORCHESTRATOR_ENVIRONMENT, Orchestrator
from llmc.model_repo.pbtxt import CONFIG_FILE, read_config
from llmc.model_repo.server_log import ServerLog
from llmc.model_repo.tritonserver import TritonServer

log = logging.getLogger(__name__)

SHUTDOWN_GRACE_SECONDS = 10.0
"""How long after its own exit timeout a server may still take."""


LAST_WORDS_SECONDS = 5.0
"""How long the ranks that are left may take to tell their clients that one is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRanks:
    """The ranks of a model in leader mode: one server each, the first of which serves."""

    launcher: Launcher
    model: str
    world_size: int
    hostfile: Path | None
    oversubscribe: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where a repository is served. A metrics port of None turns metrics off.

    `drain_seconds` is how long running requests may take once the server is told to stop; new ones
    are accepted until nothing runs.
    """

    repository: Path
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int | None
    ready_timeout_seconds: float
    drain_seconds: int
    log_file: Path | None = None
    verbose: bool = False
    stop_timeout_seconds: float = 30.0
    ranks: "LeaderRanks | None" = None
    orchestrator: Orchestrator | None = None

    @property
    def http_url(self) -> str:
        return f"{self.host}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"{self.host}:{self.grpc_port}"


def server_command(server: TritonServer, config: ServerConfig, *, shm_prefix: str) -> list[str]:
    """Return the command line; every default that matters is spelled out."""
    command = [
        *_common_flags(server, config, shm_prefix),
        f"--http-address={config.host}",
        f"--http-port={config.http_port}",
        f"--grpc-address={config.host}",
        f"--grpc-port={config.grpc_port}",
    ]
    if config.metrics_port is None:
        command.append("--allow-metrics=false")
    else:
        command += [
            f"--metrics-address={config.host}",
            f"--metrics-port={config.metrics_port}",
            "--allow-gpu-metrics=false",
        ]
    return command


def follower_command(
    server: TritonServer, config: ServerConfig, *, model: str, shm_prefix: str
) -> list[str]:
    """Return the command line of a rank other than 0: one model, and nobody to ask it."""
    return [
        *_common_flags(server, config, shm_prefix),
        "--allow-http=false",
        "--allow-grpc=false",
        "--allow-metrics=false",
        FOLLOWER_FLAG,
        f"--load-model={model}",
    ]


def _common_flags(server: TritonServer, config: ServerConfig, shm_prefix: str) -> list[str]:
    flags = [
        str(server.binary),
        f"--model-repository={config.repository.resolve()}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={config.drain_seconds}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        f"--backend-config=python,stub-timeout-seconds={int(config.ready_timeout_seconds)}",
        f"--log-verbose={int(config.verbose)}",
        *(config.orchestrator.flags() if config.orchestrator is not None else ()),
    ]
    if server.backend_dir is not None:
        flags.append(f"--backend-directory={server.backend_dir}")
    return flags


def job_command(server: TritonServer, config: ServerConfig, *, shm_prefix: str) -> list[str]:
    """Return what is run: a server, or a job of one server per rank under an MPI launcher."""
    lead = server_command(server, config, shm_prefix=shm_prefix)
    if config.ranks is None:
        return lead
    follower = follower_command(
        server, config, model=config.ranks.model, shm_prefix=f"{shm_prefix}f_"
    )
    job = Job(
        programs=(
            Program(command=tuple(lead), num_ranks=1),
            Program(command=tuple(follower), num_ranks=config.ranks.world_size - 1),
        ),
        hostfile=config.ranks.hostfile,
        oversubscribe=config.ranks.oversubscribe,
        as_root=os.geteuid() == 0,
    )
    return command_line(config.ranks.launcher, job)


def job_environment(server: TritonServer, config: ServerConfig) -> dict[str, str]:
    """Return the environment of what is run."""
    own = ORCHESTRATOR_ENVIRONMENT if config.orchestrator is not None else {}
    return server.environment() | own


class ServerProcess:
    """A running tritonserver; a context manager that stops it."""

    def __init__(self, server: TritonServer, config: ServerConfig) -> None:
        """Start the server. Raises: ServeError when the process cannot be started."""
        self.config = config
        self._shm_prefix = f"llmc_{os.getpid()}_{config.http_port}_"
        command = job_command(server, config, shm_prefix=self._shm_prefix)
        log.log(
            logging.DEBUG if config.ranks is None else logging.INFO,
            "starting %s",
            shlex.join(command),
        )
        try:
            self._process = subprocess.Popen(
                guarded(command),
                env=job_environment(server, config),
                # Its Python processes have the working folder on their path: one without modules.
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise ServeError(f"{server.binary}: {error}") from error
        assert self._process.stdout is not None
        self._models: dict[psutil.Process, str] = {}
        self._stopped_since: dict[psutil.Process, float] = {}
        self._ended_since: dict[psutil.Process, float] = {}
        self._log = ServerLog(self._process.stdout, config.log_file)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while the server runs."""
        return self._process.poll()

    def explain(self) -> str:
        """Return what the server's log says of its end."""
        self._log.join()
        return self._log.explain()

    def wait_until_ready(self, stop: threading.Event) -> bool:
        """Return True once every model is ready, or False when `stop` is set before.

        Raises: ServeError with the end of the log when the server ends or the time is over.
        """
        deadline = time.monotonic() + self.config.ready_timeout_seconds
        while not self._is_ready():
            if self.returncode is not None:
                raise ServeError(
                    f"tritonserver ended with code {self.returncode} before it was ready\n"
                    f"{self.explain()}"
                )
            if (dead := self._died_starting()) is not None:
                raise ServeError(f"{dead}\n{self._log.explain()}")
            if time.monotonic() > deadline:
                raise ServeError(
                    f"tritonserver is not ready after {self.config.ready_timeout_seconds:g} s\n"
                    f"{self._log.explain()}",
                    hint="a slow machine may need a longer --timeout",
                )
            if stop.wait(0.1):
                return False
        self._models = find_model_processes(self.pid)
        return True

    def _died_starting(self) -> str | None:
        """Return which model's process has ended while others, and Triton, still wait for it."""
        self._models |= find_model_processes(self.pid)
        now = time.monotonic()
        for process, name in self._models.items():
            if not is_alive(process):
                ended = self._ended_since.setdefault(process, now)
                # A server whose model cannot be loaded ends by itself, and says why.
                if now - ended > SHUTDOWN_GRACE_SECONDS:
                    return f"the process of {name} ended before it was ready"
        return None

    def failure(self) -> str | None:
        """Return why a server that was ready no longer serves, or None while it does."""
        if self.returncode is not None:
            return f"tritonserver ended by itself with code {self.returncode}\n{self.explain()}"
        dead = [name for process, name in self._models.items() if not is_alive(process)]
        if dead:
            if self.config.ranks is not None:
                # Rank 0 tells its clients, then ends the job.
                self.wait(LAST_WORDS_SECONDS)
            return f"the process of {', '.join(dead)} ended\n{self._log.explain()}"
        return self._stopped()

    def _stopped(self) -> str | None:
        """Return which process has been stopped for too long (SIGSTOP): it would never answer."""
        now = time.monotonic()
        watched = self._models | {process: "tritonserver" for process in find_servers(self.pid)}
        since = self._stopped_since
        self._stopped_since = {
            process: since.get(process, now) for process in watched if is_stopped(process)
        }
        for process, start in self._stopped_since.items():
            if now - start > self.config.stop_timeout_seconds:
                return (
                    f"the process of {watched[process]} (pid {process.pid}) has been stopped for"
                    f" {self.config.stop_timeout_seconds:g} s\n{self._log.explain()}"
                )
        return None

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the server to end by itself; its exit code, or None when the time is over."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> int:
        """Let running requests finish, end the server, and return its exit code."""
        try:
            if self.failure() is None:
                self._drain()
                self._terminate()
                if self.wait(self.config.drain_seconds + SHUTDOWN_GRACE_SECONDS) is None:
                    log.warning("tritonserver does not stop; killing it")
        finally:
            # Also when a second signal ends the waiting.
            self.kill()
        return self._process.returncode

    def kill(self) -> None:
        """End the server and everything it started, now: its guard does when its input ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.join()
        for region in Path("/dev/shm").glob(f"{self._shm_prefix}*"):
            region.unlink(missing_ok=True)

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _terminate(self) -> None:
        """Ask the server to stop; of several ranks the one that serves, which tells the others."""
        servers = find_servers(self.pid)
        for process in servers:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        if not servers:
            # Rank 0 is on another host: its launcher passes the signal on.
            for child in psutil.Process(self.pid).children():
                child.terminate()

    def _is_ready(self) -> bool:
        try:
            url = f"http://{self.config.http_url}/v2/health/ready"
            with urllib.request.urlopen(url, timeout=1.0) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _drain(self) -> None:
        """Wait until the executor has been idle for a while, at most `drain_seconds`.

        Triton itself waits for running requests only after it has closed their connections.
        """
        if self.config.metrics_port is None:
            return
        deadline = time.monotonic() + self.config.drain_seconds
        idle_since: float | None = None
        while time.monotonic() < deadline and self.returncode is None:
            now = time.monotonic()
            if self._num_active() > 0:
                idle_since = None
            elif idle_since is None:
                idle_since = now
            elif now - idle_since > self._idle_seconds():
                return
            time.sleep(0.05)

    def _num_active(self) -> float:
        """Return the number of requests in the executor; 0 where nobody counts them."""
        try:
            metrics = read_metrics(f"{self.config.host}:{self.config.metrics_port}")
        except ServeError:
            return 0
        return metrics.get(("nv_trt_llm_request_metrics", "active"), 0)

    def _idle_seconds(self) -> float:
        """Return how old the count of requests may be, and a little more."""
        try:
            config = read_config(self.config.repository / "tensorrt_llm" / CONFIG_FILE)
            period = float(config.parameters["stats_check_period_ms"].string_value) / 1000
        except (BuildError, ValueError):
            period = 0.1
        return 2 * period + 0.1
