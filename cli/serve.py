"""`llmc serve`: a model repository under tritonserver, until told to stop."""

import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from llmc.errors import BuildError, CheckpointError, GateError, ServeError

if TYPE_CHECKING:
    from llmc.model_repo.server import ServerProcess

log = logging.getLogger(__name__)


def serve(
    repository: Annotated[Path, typer.Argument(help="Model repository, e.g. OUT/model_repo.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="HTTP port; 0 takes a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="gRPC port; 0 takes a free one.")] = 8001,
    metrics_port: Annotated[int, typer.Option(help="Metrics port; 0 takes a free one.")] = 8002,
    tritonserver: Annotated[
        Path | None, typer.Option(help="Server binary, else PATH's, else the wheel's.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds until it must be ready.")] = 300.0,
    drain: Annotated[int, typer.Option(help="Seconds running requests get at the end.")] = 30,
    log_file: Annotated[Path | None, typer.Option(help="File for the server's log.")] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Let the server log requests.")
    ] = False,
    allow_ungated: Annotated[
        bool,
        typer.Option("--allow-ungated", help="Serve an engine that failed or never saw its gate."),
    ] = False,
    cache: Annotated[
        Path, typer.Option(envvar="LLMC_CACHE", help="Folder for llmc's own files.")
    ] = Path("~/.cache/llmc"),
) -> None:
    """Serve a model repository with tritonserver until SIGINT or SIGTERM.

    Prints one line when every model is ready. On the first signal running requests are finished,
    on the second everything ends at once. The server's log goes to --log-file, else to llmc's debug
    log; its end is shown when the server fails. An engine without a quality gate that it passed,
    as it lies there now, is refused with exit code 8.

    Examples:

      llmc serve OUT/model_repo

      llmc serve OUT/model_repo --http-port 0 --grpc-port 0 --metrics-port 0 --log-file triton.log
    """
    from llmc.model_repo.lint import lint_repository
    from llmc.model_repo.server import ServerConfig, ServerProcess
    from llmc.model_repo.tritonserver import find_tritonserver

    if not repository.is_dir():
        raise CheckpointError(
            f"{repository}: no directory, expected a model repository",
            hint="llmc build MODEL -o OUT writes OUT/model_repo",
        )
    _require_gated(repository, allow_ungated=allow_ungated)
    lint_repository(repository)
    server = find_tritonserver(tritonserver, cache=cache.expanduser())
    log.info("tritonserver: %s (%s)", server.binary, server.source)
    ports = _pick_ports(host, {"http": http_port, "grpc": grpc_port, "metrics": metrics_port})
    config = ServerConfig(
        repository=repository,
        host=host,
        http_port=ports["http"],
        grpc_port=ports["grpc"],
        metrics_port=ports["metrics"],
        ready_timeout_seconds=timeout,
        drain_seconds=drain,
        log_file=log_file,
        verbose=verbose,
    )
    with _stop_on_signal() as stop, ServerProcess(server, config) as process:
        if process.wait_until_ready(stop):
            typer.echo(
                f"ready: http://{config.http_url} grpc {config.grpc_url}"
                f" metrics http://{host}:{config.metrics_port}/metrics"
            )
            _wait(process, stop)
        log.info("stopping: running requests have %d s to finish", drain)


def _require_gated(repository: Path, *, allow_ungated: bool) -> None:
    """Raise GateError unless every engine the repository names has passed its gate.

    What cannot be read or is not there at all is lint's to report.
    """
    from llmc.gate.record import is_kept_aside, require_passed

    for engine_dir in sorted(set(_engines(repository))):
        if not engine_dir.is_dir() and not is_kept_aside(engine_dir):
            continue
        try:
            require_passed(engine_dir)
        except GateError as error:
            if not allow_ungated:
                raise
            log.warning("%s", error.message)


def _engines(repository: Path) -> Iterator[Path]:
    from llmc.model_repo.pbtxt import CONFIG_FILE, read_config

    for file in repository.glob(f"*/{CONFIG_FILE}"):
        try:
            path = read_config(file).parameters["gpt_model_path"].string_value
        except BuildError:
            continue
        if path:
            yield (repository / path).resolve()


def _wait(process: "ServerProcess", stop: threading.Event) -> None:
    """Return when told to stop. Raises: ServeError when the server or a model's process ends."""
    while not stop.wait(0.5):
        failure = process.failure()
        if failure is not None:
            raise ServeError(failure)


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; every further one raises SystemExit."""
    stop = threading.Event()

    def handle(signum: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise SystemExit(128 + signum)
        stop.set()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _pick_ports(host: str, wanted: dict[str, int]) -> dict[str, int]:
    """Replace each 0 by a free port. Raises: ServeError for a port that is taken."""
    ports = {}
    with contextlib.ExitStack() as stack:
        for name, port in wanted.items():
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise ServeError(
                    f"--{name}-port: {host}:{port}: {error.strerror}",
                    hint="another server may run there; 0 takes a free port",
                ) from error
            ports[name] = probe.getsockname()[1]
    return ports
