"""What is measured in place of what TensorRT-LLM serves: an engine, or a Hugging Face checkpoint.

It was made from a TensorRT-LLM checkpoint, whose numbers it has, and which lies beside it: the CPU
target runs that one. What the two runtimes do differently is not seen: how each accumulates and
rounds, and, of W4A16_AWQ in a Hugging Face checkpoint, that scales of inputs were rounded once more
with the norm they went into.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from llmc import artifacts
from llmc.builders.targets import BuildLimits, cpu
from llmc.checkpoint import Checkpoint
from llmc.errors import CheckpointError
from llmc.gate.measure import STEP_TOKENS, WINDOW_TOKENS
from llmc.log import Progress
from llmc.recipes.schema import BuildRecipe, CpuTarget
from llmc.runtime.engine import NotRunnableHereError, read_engine_config


def checkpoint_behind(engine_dir: Path) -> Path | None:
    """Return the checkpoint that TensorRT-LLM's directory was made from, None of llmc's engines.

    Raises: CheckpointError unless it lies beside it and is still that one.
    """
    if "llmc" in read_engine_config(engine_dir):
        return None
    checkpoint = engine_dir.parent / "checkpoint"
    wanted = artifacts.read_manifest(engine_dir).inputs.get("checkpoint")
    if not (checkpoint / artifacts.MANIFEST_NAME).is_file():
        raise CheckpointError(
            f"{engine_dir}: made from a checkpoint that is not at {checkpoint}",
            hint="build it again, or copy the checkpoint there: it is measured in its place",
        )
    found = artifacts.read_manifest(checkpoint).content_digest
    if found != wanted:
        raise CheckpointError(
            f"{engine_dir}: made from another checkpoint than {checkpoint}",
            hint="build it again",
        )
    return checkpoint


def is_hugging_face(engine_dir: Path) -> bool:
    """Say whether the directory is a Hugging Face checkpoint, of which there is no repository."""
    return "pretrained_config" not in read_engine_config(engine_dir)


@contextmanager
def stand_in(checkpoint_dir: Path, beside: Path, progress: Progress) -> Iterator[Path]:
    """Make an engine for this CPU from a checkpoint, and remove it afterwards.

    Raises: NotRunnableHereError when the CPU target does not run the checkpoint.
    """
    checkpoint = Checkpoint.open(checkpoint_dir)
    max_seq_len = min(WINDOW_TOKENS, checkpoint.config.arch.max_position_embeddings)
    limits = BuildLimits(
        max_batch_size=1,
        max_num_tokens=STEP_TOKENS,
        max_input_len=max_seq_len - 1,
        max_seq_len=max_seq_len,
        tokens_per_block=BuildRecipe().plugins.tokens_per_block,
    )
    options = CpuTarget()
    reasons = cpu.unsupported(checkpoint.config, limits, options)
    if reasons:
        raise NotRunnableHereError(
            "\n  - ".join([f"{checkpoint_dir}: the CPU target does not run it", *reasons])
        )
    with TemporaryDirectory(prefix="stand-in-", dir=beside) as made:
        cpu.build(checkpoint, Path(made), limits=limits, options=options, progress=progress)
        yield Path(made)
