"""Two hosts within this one: network namespaces, with a wire between them.

They share nothing but the disk: each has its own name, loopback, addresses and ports. In the place
of ssh is a program that enters the namespaces of the host it is given.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ADDRESSES = {"llmc-a": "10.77.0.1", "llmc-b": "10.77.0.2"}
FIRST, SECOND = ADDRESSES
SSH = """\
#!/bin/bash
# ssh [option…] host command…
set -eu
while [[ $1 == -* ]]; do shift; done
host=$1
shift
echo "$host" >> {log}
exec ip netns exec "{prefix}$host" unshare --uts --mount sh -c \\
  'mount --bind {names} /etc/hosts; hostname "$0"; exec sh -c "$1"' "$host" "$*"
"""


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """An `ssh` to the hosts of ADDRESSES, and the file in which it notes whom it reached."""

    ssh: Path
    log: Path

    @property
    def first(self) -> tuple[str, ...]:
        """What runs a command line on the first host."""
        return (str(self.ssh), FIRST)


@contextmanager
def two_hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Make the hosts, or skip the test and say what the machine forbids."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("no ip or unshare: apt install iproute2 util-linux")
    prefix = f"t{os.getpid()}"
    found = Hosts(ssh=tmp_path / "ssh", log=tmp_path / "ssh.log")
    names = tmp_path / "hosts"
    lines = ["127.0.0.1 localhost", *(f"{ip} {host}" for host, ip in ADDRESSES.items())]
    names.write_text("\n".join(lines) + "\n")
    found.ssh.write_text(SSH.format(log=found.log, prefix=prefix, names=names))
    found.ssh.chmod(0o755)
    a, b = prefix + FIRST, prefix + SECOND
    commands = [f"ip netns add {a}", f"ip netns add {b}"]
    commands.append(f"ip link add wire netns {a} type veth peer name wire netns {b}")
    for host, address in ADDRESSES.items():
        commands += [
            f"ip -n {prefix}{host} addr add {address}/24 dev wire",
            f"ip -n {prefix}{host} link set lo up",
            f"ip -n {prefix}{host} link set wire up",
            f"{found.ssh} {host} true",
        ]
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no namespaces of its own: {command}: {done.stderr.strip()}")
        found.log.unlink()
        yield found
    finally:
        for name in (a, b):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
