"""How each MPI launcher spells a job: one table of flags, and the command line it makes.

A job is one or more programs with a number of ranks each, in rank order. Starting one, and finding
the launcher that is installed, is mpi.py's part.

Sources: mpirun(1) of Open MPI 4.1 and 5.0 (docs.open-mpi.org, "Launching MPI applications");
MPICH's Hydra, "Using the Hydra Process Manager"; srun(1) of Slurm 23.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llmc.errors import ToolchainError, UnsupportedError

FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables a rank on another host needs to find Python, Triton's libraries and llmc."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """Flags of one launcher. `{n}`, `{file}` and `{name}` are filled in.

    `forward` with `{name}` is repeated for each variable; else it forwards all. Without a
    `separator` a job has one program, and `rank_variable` lets a shell choose in each rank.
    """

    title: str
    version: str
    """What `--version` of such a launcher matches."""
    libraries: tuple[str, ...] = ()
    """MPI libraries whose ranks it can start, as mpi4py calls them; empty: depends on its build."""
    always: tuple[str, ...]
    num_ranks: tuple[str, ...]
    as_root: tuple[str, ...] = ()
    oversubscribe: tuple[str, ...] = ()
    hostfile: tuple[str, ...]
    hostfile_line: str
    forward: tuple[str, ...]
    separator: str | None = ":"
    rank_variable: str


# Ranks are never bound: their threads share the cores out among themselves, and the default of
# Open MPI would put all threads of a rank on one core.
FLAVOURS: dict[str, Flavour] = {
    "openmpi4": Flavour(
        title="Open MPI 4",
        version=r"\(Open ?MPI\) [1-4]\.",
        libraries=("Open MPI",),
        always=("--bind-to", "none"),
        num_ranks=("-n", "{n}"),
        as_root=("--allow-run-as-root",),
        oversubscribe=("--oversubscribe",),
        hostfile=("--hostfile", "{file}"),
        hostfile_line="{host} slots={slots}",
        forward=("-x", "{name}"),
        rank_variable="OMPI_COMM_WORLD_RANK",
    ),
    "openmpi5": Flavour(
        title="Open MPI 5",
        version=r"\(Open ?MPI\) (?:[5-9]|\d\d)\.",
        libraries=("Open MPI",),
        always=("--bind-to", "none"),
        num_ranks=("-n", "{n}"),
        as_root=("--allow-run-as-root",),
        oversubscribe=("--map-by", ":OVERSUBSCRIBE"),
        hostfile=("--hostfile", "{file}"),
        hostfile_line="{host} slots={slots}",
        forward=("-x", "{name}"),
        rank_variable="OMPI_COMM_WORLD_RANK",
    ),
    "mpich": Flavour(
        title="MPICH",
        version=r"HYDRA build details|Intel\(R\) MPI",
        libraries=("MPICH", "Intel MPI", "MVAPICH", "MVAPICH2"),
        always=("-bind-to", "none"),
        num_ranks=("-n", "{n}"),
        hostfile=("-f", "{file}"),
        hostfile_line="{host}:{slots}",
        forward=("-genvall",),
        rank_variable="PMI_RANK",
    ),
    "slurm": Flavour(
        title="Slurm",
        version=r"^slurm(?:-wlm)? \d",
        always=("--mpi=pmix", "--kill-on-bad-exit=1", "--cpu-bind=none"),
        num_ranks=("--ntasks={n}",),
        oversubscribe=("--overcommit",),
        # The nodes are the allocation's; a file of their names only narrows it.
        hostfile=("--nodefile={file}",),
        hostfile_line="{host}",
        forward=("--export=ALL",),
        separator=None,
        rank_variable="SLURM_PROCID",
    ),
}
"""What `--version` tells apart → its flags."""
# MPICH's ranks speak PMI-2 to Slurm, Open MPI's PMIx; srun does not say which it will start.
FLAVOURS["slurm_pmi2"] = replace(
    FLAVOURS["slurm"],
    libraries=("MPICH", "Intel MPI", "MVAPICH", "MVAPICH2"),
    always=("--mpi=pmi2", *FLAVOURS["slurm"].always[1:]),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What `num_ranks` successive ranks run."""

    command: tuple[str, ...]
    num_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One MPI job. `forward` names variables that ranks on other hosts get, too."""

    programs: tuple[Program, ...]
    hostfile: Path | None = None
    oversubscribe: bool = False
    as_root: bool = False
    forward: tuple[str, ...] = FORWARDED

    @property
    def num_ranks(self) -> int:
        return sum(program.num_ranks for program in self.programs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A launcher's binary and which row of FLAVOURS it belongs to."""

    binary: str
    flavour: str

    @property
    def flags(self) -> Flavour:
        return FLAVOURS[self.flavour]


def recognize(version_text: str) -> str:
    """Return the FLAVOURS key of a launcher by what its `--version` prints.

    Raises: ToolchainError for a launcher that is none of them.
    """
    for name, flavour in FLAVOURS.items():
        if re.search(flavour.version, version_text, re.MULTILINE):
            return name
    known = ", ".join(flavour.title for flavour in FLAVOURS.values())
    first = version_text.strip().splitlines()[:1] or ["nothing"]
    raise ToolchainError(f"MPI launcher: --version prints {first[0]!r}, expected one of {known}")


def command_line(launcher: Launcher, job: Job) -> list[str]:
    """Return the command that runs `job`."""
    flags = launcher.flags
    command = [launcher.binary, *flags.always]
    if job.as_root:
        command += flags.as_root
    if job.oversubscribe:
        command += flags.oversubscribe
    if job.hostfile is not None:
        command += [flag.format(file=job.hostfile) for flag in flags.hostfile]
    command += _forward(flags, job.forward)
    if flags.separator is None:
        total = [flag.format(n=job.num_ranks) for flag in flags.num_ranks]
        return [*command, *total, *_by_rank(flags.rank_variable, job.programs)]
    for index, program in enumerate(job.programs):
        command += [flags.separator] if index else []
        command += [flag.format(n=program.num_ranks) for flag in flags.num_ranks]
        command += program.command
    return command


def _forward(flags: Flavour, names: tuple[str, ...]) -> list[str]:
    if not names:
        return []
    if "{name}" in flags.forward:
        return [flag.format(name=name) for name in names for flag in flags.forward]
    return list(flags.forward)


def _by_rank(variable: str, programs: Sequence[Program]) -> list[str]:
    """Return a command that every rank runs, which becomes the program of its rank."""
    if len(programs) == 1:
        return list(programs[0].command)
    lines, end = [], 0
    for program in programs[:-1]:
        end += program.num_ranks
        lines.append(f'[ "${variable}" -lt {end} ] && exec {shlex.join(program.command)}')
    lines.append(f"exec {shlex.join(programs[-1].command)}")
    return ["sh", "-c", "\n".join(lines)]


def hostfile_slots(text: str) -> int:
    """Return how many ranks the hosts of a hostfile take, Open MPI's and MPICH's spelling alike.

    A host without a number has one slot. Raises: UnsupportedError for a line that is neither.
    """
    total = 0
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = re.fullmatch(r"[\w.\-]+(?::(\d+)|\s+slots\s*=\s*(\d+))?(?:\s+max_slots=\d+)?", line)
        if match is None:
            raise UnsupportedError(
                f"hostfile line {number}: {line!r}, expected `host`, `host slots=N` or `host:N`"
            )
        total += int(match[1] or match[2] or 1)
    return total
