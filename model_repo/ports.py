"""Ports for a server that is about to start."""

import contextlib
import random
import socket

from llmc.errors import ServeError

_FREE = range(20000, 32768)
"""Where free ports are looked for: below those that Linux gives to outgoing connections, one of
which could take a port before the server listens on it."""


def pick_ports(host: str, wanted: dict[str, int]) -> dict[str, int]:
    """Replace each 0 by a port nobody listens on. Raises: ServeError for one that is taken."""
    ports = {}
    with contextlib.ExitStack() as stack:
        for name, port in wanted.items():
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                ports[name] = _bind(probe, host, [port] if port else random.sample(_FREE, 100))
            except OSError as error:
                raise ServeError(
                    f"--{name}-port: {host}:{port}: {error.strerror}",
                    hint="another server may run there; 0 takes a free port",
                ) from error
    return ports


def _bind(probe: socket.socket, host: str, candidates: list[int]) -> int:
    """Bind to the first candidate that is free. Raises: OSError of the last if none is."""
    for port in candidates[:-1]:
        with contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    probe.bind((host, candidates[-1]))
    return candidates[-1]
