"""What the executor needs of an engine, and the one place that finds the engine of a directory."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from llmc import artifacts
from llmc.errors import CheckpointError, ServeError, ToolchainError
from llmc.lookup import load
from llmc.runtime.batch import Batch
from llmc.targets import TARGETS


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What one loaded engine can take. `num_blocks` is the size of its KV pool, in blocks.

    `vocab_size` is the model's own vocabulary: logits have that many columns, padding is dropped.
    """

    max_batch_size: int
    max_num_tokens: int
    max_input_len: int
    max_seq_len: int
    vocab_size: int
    tokens_per_block: int
    num_blocks: int
    long_prompt: int | None = None
    """Prompts longer than this have other keys than shorter ones of the same tokens; None: none"""
    each_long_prompt: int = 0
    """1: long prompts have the same keys only if they are of one length; 0: all of them do"""

    def prompt_salt(self, num_prompt: int) -> bytes:
        """Return what a prompt's keys depend on beside its tokens, as bytes."""
        if self.long_prompt is None or num_prompt <= self.long_prompt:
            return b""
        return b"long" + (num_prompt.to_bytes(4, "little") if self.each_long_prompt else b"")

    @property
    def max_blocks_per_sequence(self) -> int:
        return -(-self.max_seq_len // self.tokens_per_block)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheConfig:
    """How much memory the KV pool may take: at most `max_tokens` tokens, and at most
    `free_memory_fraction` of the memory that is free once the weights are loaded."""

    max_tokens: int | None = None
    free_memory_fraction: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConfig:
    """How the ranks of an engine that has several are run, TensorRT-LLM's words.

    "leader": this process is rank 0 of an MPI job that runs already. "orchestrator": it is no rank
    and starts them, at most `max_restarts` times again when one is lost. A rank that has not been
    heard of for `timeout_seconds` is lost, and with it all of them.
    """

    launch_mode: Literal["leader", "orchestrator"] = "leader"
    timeout_seconds: float = 30.0
    max_restarts: int = 0


class EngineLostError(ServeError):
    """A rank of the engine was lost: this engine cannot step any more, another one could."""


class NotRunnableHereError(ToolchainError):
    """This machine lacks what the engine runs on, whatever the engine is like."""


TENSORRT_LLM_KEYS = {"version", "pretrained_config", "build_config"}
"""What the config.json of an engine has that TensorRT-LLM wrote, who knows nothing of llmc.

Source: NVIDIA/TensorRT-LLM tensorrt_llm/builder.py (EngineConfig.to_dict)."""


class Engine(Protocol):
    """A loaded model: weights, KV pool and kernels to step them. Used by one thread at a time."""

    @property
    def limits(self) -> EngineLimits: ...

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Run one step and return logits [L, vocab_size] of `batch.logits_rows`, in their order.

        Writes the new tokens' keys and values into the KV pool. The array is the engine's own:
        valid until the next call, not to be modified.
        """
        ...

    def close(self) -> None:
        """Release memory and threads; the engine is unusable afterwards."""
        ...


def read_engine_config(engine_dir: Path) -> dict[str, Any]:
    """Return `engine_dir`/config.json.

    Raises: CheckpointError when it is missing or not a JSON object.
    """
    path = engine_dir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path}: not found; expected an engine directory",
            hint="make one with `llmc build MODEL -o OUT`; the engine is OUT/engine",
        ) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: {error}; expected the JSON of an engine") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: {type(config).__name__}, expected a JSON object")
    return config


def engine_target(engine_dir: Path) -> str:
    """Return the target an engine directory was built for. Raises: CheckpointError."""
    config = read_engine_config(engine_dir)
    section = config.get("llmc")
    if section is None and (config.keys() >= TENSORRT_LLM_KEYS or _is_served_as_is(engine_dir)):
        return "tensorrt-llm"
    target = section.get("target") if isinstance(section, dict) else None
    if not isinstance(target, str):
        raise CheckpointError(
            f"{engine_dir / 'config.json'}: llmc.target is {target!r}, expected one of "
            f"{', '.join(sorted(TARGETS))}",
            hint="this engine was not built by llmc",
        )
    return target


def _is_served_as_is(engine_dir: Path) -> bool:
    """Say whether this is a Hugging Face checkpoint that `llmc build` wrote to be served."""
    path = engine_dir / artifacts.MANIFEST_NAME
    return path.is_file() and artifacts.read_manifest(engine_dir).stage == "engine"


def check_engine(engine_dir: Path, rank: int) -> str | None:
    """Look at a rank's engine without loading it; return which build it is of, if it says.

    Raises: CheckpointError for a file that is missing, damaged or of another build than the
    directory's config.json.
    """
    module = load(TARGETS, engine_target(engine_dir), package="llmc.runtime.engines", kind="target")
    build: str | None = module.check(engine_dir, rank)
    if build != read_engine_config(engine_dir)["llmc"].get("build"):
        raise CheckpointError(
            f"{engine_dir}: rank{rank}.engine is of another build than config.json",
            hint="build the engine again with `llmc build`",
        )
    return build


def require_machine(engine_dir: Path) -> None:
    """Raise NotRunnableHereError when this machine cannot run what the engine was built for."""
    module = load(TARGETS, engine_target(engine_dir), package="llmc.runtime.engines", kind="target")
    lacking: str | None = module.lacking(engine_dir)
    if lacking is not None:
        raise NotRunnableHereError(
            f"{engine_dir}: cannot run here: {lacking}", hint="copy it to a machine that has it"
        )


def load_engine(
    engine_dir: Path,
    *,
    rank: int = 0,
    kv: KvCacheConfig,
    comm: object | None = None,
    threads: int | None = None,
) -> Engine:
    """Load rank `rank` of an engine directory with the runtime of the target it was built for.

    `comm` connects the ranks of an engine that has several; `threads` None is the target's choice.
    Raises: CheckpointError for a broken directory, UnsupportedError for an unknown target or a
    machine that cannot run it.
    """
    module = load(TARGETS, engine_target(engine_dir), package="llmc.runtime.engines", kind="target")
    engine: Engine = module.load(engine_dir, rank=rank, kv=kv, comm=comm, threads=threads)
    return engine
