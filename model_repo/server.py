"""One tritonserver process: start it, wait until it is ready, stop it with requests drained.

The server runs in a session of its own, so that a Ctrl-C meant for llmc does not reach it
half-way; after it has ended nothing of that session is left, whatever a crashed model process
would have kept.
"""

import contextlib
import logging
import os
import signal
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
from llmc.model_repo.metrics import read_metrics
from llmc.model_repo.model_processes import find_model_processes, is_alive
from llmc.model_repo.pbtxt import CONFIG_FILE, read_config
from llmc.model_repo.server_log import ServerLog
from llmc.model_repo.tritonserver import TritonServer

log = logging.getLogger(__name__)

SHUTDOWN_GRACE_SECONDS = 10.0
"""How long after its own exit timeout a server may still take."""


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

    @property
    def http_url(self) -> str:
        return f"{self.host}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"{self.host}:{self.grpc_port}"


def server_command(server: TritonServer, config: ServerConfig, *, shm_prefix: str) -> list[str]:
    """Return the command line; every default that matters is spelled out."""
    command = [
        str(server.binary),
        f"--model-repository={config.repository.resolve()}",
        "--disable-auto-complete-config",
        f"--http-address={config.host}",
        f"--http-port={config.http_port}",
        f"--grpc-address={config.host}",
        f"--grpc-port={config.grpc_port}",
        f"--exit-timeout-secs={config.drain_seconds}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        f"--backend-config=python,stub-timeout-seconds={int(config.ready_timeout_seconds)}",
        f"--log-verbose={int(config.verbose)}",
    ]
    if config.metrics_port is None:
        command.append("--allow-metrics=false")
    else:
        command += [
            f"--metrics-address={config.host}",
            f"--metrics-port={config.metrics_port}",
            "--allow-gpu-metrics=false",
        ]
    if server.backend_dir is not None:
        command.append(f"--backend-directory={server.backend_dir}")
    return command


class ServerProcess:
    """A running tritonserver; a context manager that stops it."""

    def __init__(self, server: TritonServer, config: ServerConfig) -> None:
        """Start the server. Raises: ServeError when the process cannot be started."""
        self.config = config
        self._shm_prefix = f"llmc_{os.getpid()}_{config.http_port}_"
        command = server_command(server, config, shm_prefix=self._shm_prefix)
        log.debug("starting %s", " ".join(command))
        try:
            self._process = subprocess.Popen(
                command,
                env=server.environment(),
                # Its Python processes have the working folder on their path: one without modules.
                cwd="/",
                stdin=subprocess.DEVNULL,
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

    def failure(self) -> str | None:
        """Return why a server that was ready no longer serves, or None while it does."""
        if self.returncode is not None:
            return f"tritonserver ended by itself with code {self.returncode}\n{self.explain()}"
        dead = [name for process, name in self._models.items() if not is_alive(process)]
        if dead:
            return f"the process of {', '.join(dead)} ended\n{self._log.explain()}"
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
                self._process.send_signal(signal.SIGTERM)
                if self.wait(self.config.drain_seconds + SHUTDOWN_GRACE_SECONDS) is None:
                    log.warning("tritonserver does not stop; killing it")
        finally:
            # Also when a second signal ends the waiting.
            self.kill()
        return self._process.returncode

    def kill(self) -> None:
        """End the server and everything it started, now."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
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
