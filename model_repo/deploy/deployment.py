"""What is deployed, and where: everything the files of every kind are made from."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llmc.errors import RecipeError
from llmc.mapping import Mapping
from llmc.model_repo.launchers import FLAVOURS, FORWARDED, Job, Program
from llmc.model_repo.server import ServerConfig, follower_command, server_command
from llmc.model_repo.tritonserver import TritonServer

HTTP_PORT, GRPC_PORT, METRICS_PORT = 8000, 8001, 8002
SLURM_LAUNCHERS = tuple(name for name, flags in FLAVOURS.items() if flags.separator is None)
LAUNCHERS = tuple(name for name in FLAVOURS if name not in SLURM_LAUNCHERS)
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
"""A label of RFC 1035, short enough for what the controllers append."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretVariable:
    """Environment variable `name`, whose value is `key` of the Kubernetes secret `secret`."""

    name: str
    secret: str
    key: str

    @classmethod
    def parse(cls, text: str) -> "SecretVariable":
        """Read NAME=SECRET:KEY. Raises: RecipeError, which does not repeat the text."""
        match = re.fullmatch(r"([A-Za-z_]\w*)=([-.a-z0-9]+):([-.\w]+)", text)
        if match is None:
            raise RecipeError(
                "--secret: expected NAME=SECRET:KEY, the names of a variable, a secret and a key",
                hint="values are never written: kubectl create secret generic SECRET …",
            )
        return cls(name=match[1], secret=match[2], key=match[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One model repository on one or more hosts.

    `repository` is where every host finds it, with the engine beside it; a pod has the volume of
    `claim` there. `model` is the one with the engine. `uses_gpus`: a rank has a GPU of its own.
    `hosts` are names for the hostfile. The launchers are rows of launchers.FLAVOURS.
    `time_limit_s` bounds loading.
    """

    name: str
    namespace: str
    repository: Path
    model: str
    mapping: Mapping
    launch_mode: Literal["leader", "orchestrator"]
    uses_gpus: bool
    ranks_per_host: int
    hosts: tuple[str, ...]
    launcher: str
    slurm_launcher: str
    cpus_per_rank: int | None
    image: str
    claim: str
    shm_gib: int
    secrets: tuple[SecretVariable, ...]
    image_pull_secret: str | None
    time_limit_s: int

    @property
    def world_size(self) -> int:
        return self.mapping.world_size

    @property
    def num_hosts(self) -> int:
        return max(1, self.world_size // self.ranks_per_host)

    @property
    def size(self) -> str:
        """Say how large it is, for the head of a file."""
        numbers = {"rank": self.world_size, "host": self.num_hosts}
        ranks, hosts = (f"{n} {noun}{'s' if n > 1 else ''}" for noun, n in numbers.items())
        return f"{self.name}: {ranks} on {hosts}"

    @property
    def is_job(self) -> bool:
        """Whether each rank is a server of one MPI job."""
        return self.world_size > 1 and self.launch_mode == "leader"

    def require_valid(self) -> None:
        """Raise RecipeError with everything that does not fit together."""
        problems = list(self._problems())
        if problems:
            raise RecipeError("\n  - ".join(["cannot be deployed", *problems]))

    def _problems(self) -> Iterator[str]:
        for flag, value in (("--name", self.name), ("--namespace", self.namespace)):
            if not _NAME.fullmatch(value):
                yield f"{flag}: {value!r}, expected at most 40 of a-z, 0-9 and -, a letter first"
        world = self.world_size
        if world > self.ranks_per_host and world % self.ranks_per_host:
            fitting = ", ".join(str(size) for size in range(1, world + 1) if world % size == 0)
            yield f"--ranks-per-host: {self.ranks_per_host}, expected one of {fitting}"
        elif self.hosts and len(self.hosts) != self.num_hosts:
            yield f"--host: {len(self.hosts)} given, {world} ranks need {self.num_hosts}"
        if self.num_hosts > 1 and not self.is_job:
            yield (
                f"serve.launch_mode: orchestrator starts its ranks on one host, {world} ranks need"
                f" {self.num_hosts}: build with leader"
            )
        if not self.repository.is_absolute() or self.repository.parent == Path("/"):
            yield f"--repository: {self.repository}, expected a path like /models/model_repo"
        for flag, launcher, known in (
            ("--launcher", self.launcher, LAUNCHERS),
            ("--slurm-launcher", self.slurm_launcher, SLURM_LAUNCHERS),
        ):
            if launcher not in known:
                yield f"{flag}: {launcher!r}, expected one of {', '.join(known)}"

    def serve_command(self, *, hostfile: str | None) -> list[str]:
        """Return `llmc serve`, which checks, launches and watches the ranks, and ends them."""
        command = ["llmc", "serve", str(self.repository), "--host=0.0.0.0"]
        command.append(f"--timeout={self.time_limit_s}")
        if hostfile is not None:
            command += ["--launcher=mpirun", f"--hostfile={hostfile}"]
        return command

    def job(self) -> Job:
        """Return the ranks as a job for a launcher that watches them itself, as Slurm does.

        Secrets are forwarded by name.
        """
        server = TritonServer(
            binary=Path("tritonserver"), source="PATH", backend_dir=None, library_dirs=()
        )
        config = ServerConfig(
            repository=self.repository,
            host="0.0.0.0",
            http_port=HTTP_PORT,
            grpc_port=GRPC_PORT,
            metrics_port=METRICS_PORT,
            ready_timeout_seconds=self.time_limit_s,
            drain_seconds=30,
        )
        prefix = f"llmc_{self.name}_"
        lead = server_command(server, config, shm_prefix=prefix)
        follower = follower_command(server, config, model=self.model, shm_prefix=f"{prefix}f_")
        programs = (
            Program(command=tuple(lead), num_ranks=1),
            Program(command=tuple(follower), num_ranks=self.world_size - 1),
        )
        forward = (*FORWARDED, *(secret.name for secret in self.secrets))
        return Job(programs=programs, forward=forward)
