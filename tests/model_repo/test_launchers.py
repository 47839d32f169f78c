"""Command lines of every launcher, as data; those installed run for real in test_mpi.py."""

import subprocess
from pathlib import Path

import pytest

from llmc.errors import ToolchainError, UnsupportedError
from llmc.model_repo.launchers import (
    FLAVOURS,
    Job,
    Launcher,
    Program,
    command_line,
    hostfile_slots,
    recognize,
)

LEADER = Job(
    programs=(
        Program(command=("tritonserver", "--model-repository=/out dir/r"), num_ranks=1),
        Program(command=("tritonserver", "--load-model=tensorrt_llm"), num_ranks=3),
    ),
    hostfile=Path("hosts"),
    oversubscribe=True,
    as_root=True,
    forward=("PATH", "LD_LIBRARY_PATH"),
)
WORKERS = Job(programs=(Program(command=("python", "-m", "worker"), num_ranks=2),), forward=())
A, B = "tritonserver --model-repository=/out dir/r", "tritonserver --load-model=tensorrt_llm"

EXPECTED = {
    "openmpi4": (
        "mpirun --bind-to none --allow-run-as-root --oversubscribe --hostfile hosts -x PATH"
        f" -x LD_LIBRARY_PATH -n 1 {A} : -n 3 {B}",
        "mpirun --bind-to none -n 2 python -m worker",
    ),
    "openmpi5": (
        "mpirun --bind-to none --allow-run-as-root --map-by :OVERSUBSCRIBE --hostfile hosts"
        f" -x PATH -x LD_LIBRARY_PATH -n 1 {A} : -n 3 {B}",
        "mpirun --bind-to none -n 2 python -m worker",
    ),
    "mpich": (
        f"mpirun -bind-to none -f hosts -genvall -n 1 {A} : -n 3 {B}",
        "mpirun -bind-to none -n 2 python -m worker",
    ),
    "slurm": (
        "mpirun --mpi=pmix --kill-on-bad-exit=1 --cpu-bind=none --overcommit --nodefile=hosts"
        ' --export=ALL --ntasks=4 sh -c [ "$SLURM_PROCID" -lt 1 ] && exec'
        f" tritonserver '--model-repository=/out dir/r'\nexec {B}",
        "mpirun --mpi=pmix --kill-on-bad-exit=1 --cpu-bind=none --ntasks=2 python -m worker",
    ),
}
EXPECTED["slurm_pmi2"] = (
    EXPECTED["slurm"][0].replace("--mpi=pmix", "--mpi=pmi2"),
    EXPECTED["slurm"][1].replace("--mpi=pmix", "--mpi=pmi2"),
)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_command_lines(flavour: str) -> None:
    launcher = Launcher(binary="mpirun", flavour=flavour)
    lines = tuple(" ".join(command_line(launcher, job)) for job in (LEADER, WORKERS))
    assert lines == EXPECTED[flavour]


def test_a_shell_gives_each_rank_its_program_where_a_job_has_only_one() -> None:
    job = Job(
        programs=tuple(
            Program(command=("echo", name, "it's"), num_ranks=count)
            for name, count in (("a", 1), ("b", 2), ("c", 1))
        )
    )
    command = command_line(Launcher(binary="srun", flavour="slurm"), job)
    shell = command[command.index("sh") :]
    found = [
        subprocess.run(
            shell, env={"SLURM_PROCID": str(rank)}, capture_output=True, text=True, check=True
        ).stdout
        for rank in range(4)
    ]
    assert found == ["a it's\n", "b it's\n", "b it's\n", "c it's\n"]


@pytest.mark.parametrize(
    ("text", "flavour"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org\n", "openmpi4"),
        ("mpiexec (OpenRTE) 2.0\nmpirun (Open MPI) 3.1.3\n", "openmpi4"),
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs\n", "openmpi5"),
        ("HYDRA build details:\n    Version:   5.0.2\n", "mpich"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9\n", "mpich"),
        ("slurm 23.11.4\n", "slurm"),
        ("slurm-wlm 22.05.8\n", "slurm"),
    ],
)
def test_launchers_are_recognized_by_their_version(text: str, flavour: str) -> None:
    assert recognize(text) == flavour


def test_an_unknown_launcher_is_named() -> None:
    with pytest.raises(ToolchainError, match=r"prints 'jsrun 1\.0', expected one of Open MPI 4"):
        recognize("jsrun 1.0\n")


def test_slots_of_a_hostfile() -> None:
    text = "# two nodes\nnode-1 slots=4 max_slots=8\nnode-2:2  # MPICH\n\n10.0.0.7\n"
    assert hostfile_slots(text) == 7
    with pytest.raises(UnsupportedError, match="hostfile line 2: 'b slots=x', expected"):
        hostfile_slots("a\nb slots=x\n")
    for name, flavour in FLAVOURS.items():
        line = flavour.hostfile_line.format(host="node-1", slots=3)
        assert hostfile_slots(line) == (1 if name.startswith("slurm") else 3)
