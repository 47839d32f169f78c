"""Whether the ranks of a job hold one engine, asked before any of them loads a weight."""

import json
import socket
from collections.abc import Sequence
from pathlib import Path

from llmc.errors import CheckpointError, LlmcError
from llmc.mapping import Mapping
from llmc.runtime.engine import check_engine, read_engine_config


def read_mapping(engine_dir: Path) -> Mapping:
    """Return how the engine is split, as seen by rank 0. Raises: CheckpointError."""
    pretrained = read_engine_config(engine_dir).get("pretrained_config")
    fields = pretrained.get("mapping") if isinstance(pretrained, dict) else None
    sizes = [(fields or {}).get(name, 1) for name in ("tp_size", "pp_size", "cp_size")]
    if not isinstance(fields, dict) or not all(isinstance(size, int) for size in sizes):
        raise CheckpointError(
            f"{engine_dir / 'config.json'}: pretrained_config.mapping is {fields!r}, "
            "expected tp_size and pp_size"
        )
    return Mapping(tp_size=sizes[0], pp_size=sizes[1], cp_size=sizes[2])


def describe_rank(engine_dir: Path, rank: int) -> str:
    """Return what a rank tells the others of its engine: JSON [host, build or None, problem]."""
    host = socket.gethostname()
    try:
        return json.dumps([host, check_engine(engine_dir, rank), None])
    except LlmcError as error:
        return json.dumps([host, None, error.message])


def require_one_engine(described: Sequence[str]) -> None:
    """Compare what all ranks told, by rank.

    Raises: CheckpointError, the same on every rank, when one has no engine or another one.
    """
    told = [json.loads(one) for one in described]
    first_host, first_build, _ = told[0]
    reasons = []
    for rank, (host, build, problem) in enumerate(told):
        if problem is not None:
            reasons.append(f"rank {rank} on {host}: {problem}")
        elif build != first_build and told[0][2] is None:
            reasons.append(
                f"rank {rank} on {host} has an engine of build {build}, rank 0 on {first_host} one"
                f" of {first_build}"
            )
    if reasons:
        raise CheckpointError("\n".join(reasons), hint="give every host the same engine directory")
