"""The processes in which Triton's Python backend runs models, seen from outside.

When one of them crashes Triton keeps saying that it is ready: new requests of that model fail,
streams that were open stay silent for ever. So somebody has to look.
"""

import contextlib
from pathlib import Path

import psutil

from llmc.model_repo.tritonserver import STUB

FOLLOWER_FLAG = "--model-control-mode=explicit"
"""Tells the server of a rank that nobody asks from the one that serves."""


def find_model_processes(server_pid: int) -> dict[psutil.Process, str]:
    """Return the running model processes of a server, each with its model's name."""
    found: dict[psutil.Process, str] = {}
    try:
        children = psutil.Process(server_pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return found
    for child in children:
        try:
            arguments = child.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        scripts = [Path(argument) for argument in arguments if argument.endswith("model.py")]
        if arguments and Path(arguments[0]).name == STUB and scripts:
            # <repository>/<model>/<version>/model.py
            found[child] = scripts[0].parent.parent.name
    return found


def find_servers(root_pid: int) -> list[psutil.Process]:
    """Return the servers among a process's descendants that clients can ask."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(root_pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                arguments = child.cmdline()
                serves = arguments and Path(arguments[0]).name == "tritonserver"
                if serves and FOLLOWER_FLAG not in arguments:
                    found.append(child)
    return found


def is_stopped(process: psutil.Process) -> bool:
    """Return whether a process was stopped by a signal and not continued."""
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process still runs; one that waits to be reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
