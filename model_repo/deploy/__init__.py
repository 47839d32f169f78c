"""Scripts and manifests that run a model repository on other machines; one module per kind.

Each exports `write(deployment) -> dict[str, str]`: file name → content. Nothing here contacts a
cluster, and no secret passes through: manifests refer to them by name.
"""

KINDS: dict[str, str] = {
    "mpirun": "mpirun",
    "slurm": "slurm",
    "leaderworkerset": "leaderworkerset",
    "mpijob": "mpijob",
}
"""What `llmc deploy --kind` calls it → module here."""

__all__ = ["KINDS"]
