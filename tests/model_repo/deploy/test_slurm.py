"""The batch script under a real Slurm of two nodes, each a network namespace of this host."""

import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from llmc.mapping import Mapping
from llmc.model_repo.deploy.emit import emit_deployment
from tests.model_repo.deploy import rehearsal
from tests.model_repo.deploy.namespaces import ADDRESSES, FIRST, Hosts, two_hosts
from tests.model_repo.deploy.test_deploy import BASE
from tests.model_repo.served import needs_triton

PROGRAMS = ("slurmctld", "slurmd", "slurmstepd", "sbatch", "srun", "scancel", "sinfo")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
pytestmark = [
    needs_triton,
    pytest.mark.slow,
    pytest.mark.mpi,
    pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)}: apt install slurm-wlm"),
]

CONF = """\
ClusterName=tiny
SlurmctldHost={first}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
PluginDir={plugins}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
ReturnToService=2
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def cluster(hosts: Hosts, root: Path, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """Run Slurm's daemons until the block ends; yield the environment of its commands."""
    stepd, sbin = shutil.which("slurmstepd"), Path(str(shutil.which("slurmctld"))).parent
    plugins = sbin.parent / "lib/x86_64-linux-gnu/slurm-wlm"
    nodes = "\n".join(f"NodeName={host} CPUs=2 State=UNKNOWN" for host in ADDRESSES)
    (root / "state").mkdir(parents=True)
    conf = CONF.format(first=FIRST, plugins=plugins, root=root, nodes=nodes)
    (root / "slurm.conf").write_text(conf)
    # Nothing here uses them, but slurmd looks in /sys, where a namespace has none, unless told.
    (root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    environment = environment | {"SLURM_CONF": str(root / "slurm.conf")}
    daemons = [(FIRST, "slurmctld -D"), *((host, f"slurmd -D -d {stepd}") for host in ADDRESSES)]
    with ExitStack() as stack:
        for number, (host, command) in enumerate(daemons):
            log = stack.enter_context((root / f"daemon{number}.log").open("w"))
            daemon = subprocess.Popen(
                [str(hosts.ssh), host, f"exec {command}"],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(daemon.wait)
            stack.callback(daemon.terminate)
        deadline = time.monotonic() + 60
        while _run(hosts, "sinfo -h -o %T", environment).split() != ["idle"]:
            logs = "\n".join(path.read_text()[-2000:] for path in root.glob("*.log"))
            assert time.monotonic() < deadline, logs
            time.sleep(0.5)
        yield environment


def _run(hosts: Hosts, command: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [*hosts.first, command], env=environment, capture_output=True, text=True, timeout=60
    )
    return done.stdout


def test_a_batch_job_over_two_nodes_answers_as_one_rank(tmp_path: Path) -> None:
    deployment = replace(
        BASE,
        repository=rehearsal.build(tmp_path, tp=2),
        mapping=Mapping(tp_size=2),
        ranks_per_host=1,
        slurm_launcher="slurm_pmi2",  # as the MPI that mpi4py finds here is MPICH
    )
    emit_deployment(deployment, ["slurm"], tmp_path / "deploy")
    environment = rehearsal.write_programs(tmp_path)
    base = f"http://{FIRST}:8000"
    with (
        two_hosts(tmp_path) as hosts,
        cluster(hosts, tmp_path / "slurm", environment) as environment,
    ):
        script = shlex.quote(str(tmp_path / "deploy/chat.sbatch"))
        answer = _run(hosts, f"cd {tmp_path} && sbatch --parsable {script}", environment)
        job = int(answer)

        def ended() -> str | None:
            if _run(hosts, f"squeue -h -j {job} -o %T", environment).strip() in STARTING:
                return None
            return (tmp_path / f"chat-{job}.log").read_text()

        try:
            rehearsal.wait_until_ready(base, ended, prefix=hosts.first)
            pieces = rehearsal.streamed(base, prefix=hosts.first)
            ran_on = _run(hosts, f"squeue -h -j {job} -o %D", environment).strip()
        finally:
            _run(hosts, f"scancel {job}", environment)
        rehearsal.require_nothing_left(tmp_path / "tp2")
    assert ran_on == "2"
    assert len(pieces) == rehearsal.NUM_TOKENS
    assert "".join(pieces) == rehearsal.expected_text(tmp_path)


STARTING = ("PENDING", "CONFIGURING", "RUNNING")
