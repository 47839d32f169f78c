"""`llmc serve`: a model repository under tritonserver, until told to stop."""

import contextlib
import logging
import os
import shlex
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmc.errors import BuildError, CheckpointError, GateError, ServeError

if TYPE_CHECKING:
    from llmc.model_repo.server import ServerConfig, ServerProcess
    from llmc.model_repo.tritonserver import TritonServer

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
    launcher: Annotated[
        Path | None, typer.Option(help="mpirun or srun, else the one beside Python, else PATH's.")
    ] = None,
    hostfile: Annotated[
        Path | None, typer.Option(help="Hosts for the ranks of launch mode leader.")
    ] = None,
    restart: Annotated[
        int,
        typer.Option(help="How often a server that fails is started again; requests end with it."),
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command line instead of running it.")
    ] = False,
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
    as it lies there now, is refused with exit code 8; one of TensorRT-LLM that this machine cannot
    load, by version or GPU, with exit code 7 and the container that fits.

    An engine of several ranks is run as serve.launch_mode of its recipe says: as a job of one
    server per rank, whose command line is logged (leader), or by one server that starts its ranks
    (orchestrator).

    Examples:

      llmc serve OUT/model_repo

      llmc serve OUT/model_repo --http-port 0 --grpc-port 0 --metrics-port 0 --log-file triton.log
    """
    from llmc.model_repo.backends import require_backends
    from llmc.model_repo.lint import lint_repository
    from llmc.model_repo.ports import pick_ports
    from llmc.model_repo.server import ServerConfig
    from llmc.model_repo.tritonserver import find_tritonserver
    from llmc.model_repo.version_guard import require_fitting

    if not repository.is_dir():
        raise CheckpointError(
            f"{repository}: no directory, expected a model repository",
            hint="llmc build MODEL -o OUT writes OUT/model_repo",
        )
    _require_gated(repository, allow_ungated=allow_ungated)
    lint_repository(repository)
    server = find_tritonserver(tritonserver, cache=cache.expanduser())
    log.info("tritonserver: %s (%s)", server.binary, server.source)
    if not dry_run:
        require_backends(repository, server)
    ports = pick_ports(host, {"http": http_port, "grpc": grpc_port, "metrics": metrics_port})
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
        **_ranks(repository, launcher=launcher, hostfile=hostfile),
    )
    if dry_run:
        typer.echo(_by_hand(server, config))
        return
    require_fitting(repository)
    with _stop_on_signal() as stop:
        while not _run(server, config, stop, may_restart=restart > 0):
            restart -= 1


def _by_hand(server: "TritonServer", config: "ServerConfig") -> str:
    """Return the line for a shell that starts the same, with the variables it needs."""
    from llmc.model_repo.server import job_command, job_environment

    command = job_command(server, config, shm_prefix="llmc_")
    environment = job_environment(server, config).items()
    changed = [f"{name}={value}" for name, value in environment if os.environ.get(name) != value]
    return shlex.join(["env", *changed, *command] if changed else command)


def _run(
    server: "TritonServer", config: "ServerConfig", stop: threading.Event, *, may_restart: bool
) -> bool:
    """Serve until told to stop; False when the server failed and is to be started again.

    Raises: ServeError when it failed and `may_restart` is False.
    """
    from llmc.model_repo.server import ServerProcess

    with ServerProcess(server, config) as process:
        try:
            if process.wait_until_ready(stop):
                typer.echo(
                    f"ready: http://{config.http_url} grpc {config.grpc_url}"
                    f" metrics http://{config.host}:{config.metrics_port}/metrics"
                )
                _wait(process, stop)
        except ServeError as error:
            if not may_restart:
                raise
            log.error("%s", error.message)
            log.warning("starting the server again")
            return False
        log.info("stopping: running requests have %d s to finish", config.drain_seconds)
    return True


def _ranks(repository: Path, *, launcher: Path | None, hostfile: Path | None) -> dict[str, Any]:
    """Return what a server's configuration says of its ranks, once nothing stands in their way."""
    from llmc.model_repo.mpi import find_launcher
    from llmc.model_repo.orchestrator import Orchestrator
    from llmc.model_repo.ranks import (
        TENSORRT_LLM,
        choose_leader,
        find_ranked_models,
        leader_ranks,
        require_ready,
    )

    models = find_ranked_models(repository)
    # A rank that is stopped is first its peers' to notice: they know its number.
    timeout = 2 * min((model.timeout_seconds for model in models), default=30.0)
    leader = choose_leader(models)
    ranked = [model for model in models if model.world_size > 1]
    num_gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    require_ready(ranked, hostfile=hostfile, num_gpus=num_gpus, leader=leader is not None)
    for model in ranked:
        log.info("%s: %d ranks, %s mode", model.model, model.world_size, model.launch_mode)
    if leader is None:
        started = [
            model
            for model in models
            if model.launch_mode == "orchestrator" and model.target == TENSORRT_LLM
        ]
        orchestrator = Orchestrator(num_gpus=num_gpus) if started else None
        return {"stop_timeout_seconds": timeout, "orchestrator": orchestrator}
    found = leader_ranks(leader, find_launcher(launcher), hostfile)
    return {"stop_timeout_seconds": timeout, "ranks": found}


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
