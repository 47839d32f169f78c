"""A hostfile, and a script for hosts that reach each other by ssh."""

import shlex
from collections.abc import Sequence

from llmc.model_repo.deploy.deployment import HTTP_PORT, Deployment
from llmc.model_repo.launchers import FLAVOURS

HOSTFILE = "hostfile"


def write(deployment: Deployment) -> dict[str, str]:
    """Return mpirun.sh and, for several ranks, its hostfile."""
    if not deployment.is_job:
        return {"mpirun.sh": script(deployment, deployment.serve_command(hostfile=None))}
    line = FLAVOURS[deployment.launcher].hostfile_line
    hosts = deployment.hosts or tuple(f"host{n}" for n in range(1, deployment.num_hosts + 1))
    lines = [line.format(host=host, slots=deployment.ranks_per_host) for host in hosts]
    notes = [
        f"Run on {hosts[0]}, which serves, and reaches the others of {HOSTFILE} by ssh;"
        f" mpirun is {FLAVOURS[deployment.launcher].title}'s."
    ]
    command = deployment.serve_command(hostfile=HOSTFILE)
    return {
        HOSTFILE: "".join(f"{line}\n" for line in lines),
        "mpirun.sh": script(deployment, command, notes=notes, setup=['cd "$(dirname "$0")"']),
    }


def script(
    deployment: Deployment,
    command: Sequence[str],
    *,
    notes: Sequence[str] = (),
    setup: Sequence[str] = (),
) -> str:
    """Return a script that becomes `command`, once the secrets are found in its environment."""
    lines = [
        "#!/usr/bin/env bash",
        f"# {deployment.size}",
        *(f"# {note}" for note in notes),
        f"# Every host has llmc, tritonserver and {deployment.repository}.",
        f"# Ready when http://HOST:{HTTP_PORT}/v2/health/ready answers 200.",
        "set -euo pipefail",
        *(f': "${{{secret.name}:?not set}}"' for secret in deployment.secrets),
        *setup,
        f"exec {shlex.join(command)}",
    ]
    return "".join(f"{line}\n" for line in lines)
