"""The mpirun script over two hosts, rehearsed with two network namespaces of this one."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from llmc.errors import ToolchainError
from llmc.mapping import Mapping
from llmc.model_repo.deploy.emit import emit_deployment
from llmc.model_repo.mpi import find_launcher
from tests.model_repo.deploy import rehearsal
from tests.model_repo.deploy.namespaces import ADDRESSES, FIRST, SECOND, Hosts, two_hosts
from tests.model_repo.deploy.test_deploy import BASE
from tests.model_repo.served import needs_triton

pytestmark = [needs_triton, pytest.mark.slow, pytest.mark.mpi]


def test_two_ranks_on_two_hosts_answer_as_one(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as hosts:
        check(hosts, tmp_path)


def check(hosts: Hosts, tmp_path: Path) -> None:
    try:
        flavour = find_launcher().flavour
    except ToolchainError as error:
        pytest.skip(error.message)
    if flavour == "slurm":
        pytest.skip("needs mpirun: pip install 'llmc[mpi]'")
    deployment = replace(
        BASE,
        repository=rehearsal.build(tmp_path, tp=2),
        mapping=Mapping(tp_size=2),
        ranks_per_host=1,
        hosts=tuple(ADDRESSES),
        launcher=flavour,
    )
    emit_deployment(deployment, ["mpirun"], tmp_path / "deploy")
    environment = rehearsal.write_programs(tmp_path) | {
        # Hydra's and PRRTE's names for the program that reaches a host.
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(hosts.ssh),
        "PRTE_MCA_plm_ssh_agent": str(hosts.ssh),
        "PRTE_MCA_plm": "ssh",
        **{key: "1" for key in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")},
        **{key: "1" for key in ("PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM")},
    }
    base = f"http://{FIRST}:8000"
    log = tmp_path / "job.log"
    with log.open("w") as output:
        job = subprocess.Popen(
            [*hosts.first, f"exec {tmp_path / 'deploy/mpirun.sh'}"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

        def ended() -> str | None:
            return None if job.poll() is None else log.read_text()

        try:
            rehearsal.wait_until_ready(base, ended, prefix=hosts.first)
            pieces = rehearsal.streamed(base, prefix=hosts.first)
        finally:
            job.terminate()
            job.wait(60)
    rehearsal.require_nothing_left(tmp_path)
    assert SECOND in hosts.log.read_text().split(), "the second rank is elsewhere"
    assert len(pieces) == rehearsal.NUM_TOKENS
    assert "".join(pieces) == rehearsal.expected_text(tmp_path)
