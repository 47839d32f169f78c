"""The engine of the target `tensorrt`."""

from pathlib import Path
from typing import Any

from llmc.errors import ToolchainError
from llmc.runtime.engine import Engine, KvCacheConfig
from llmc.runtime.engines import tensorrt_loading
from llmc.runtime.engines.tensorrt_loading import check

__all__ = ["check", "lacking", "load"]


def lacking(engine_dir: Path) -> str | None:
    """Return what this machine lacks to run the plans; None if it has a GPU that one is for."""
    return tensorrt_loading.lacking(engine_dir, _import)


def load(
    engine_dir: Path,
    *,
    rank: int = 0,
    kv: KvCacheConfig,
    comm: Any | None = None,
    threads: int | None = None,
) -> Engine:
    """Load a rank's plan (tensorrt_loading.load). `threads` is for engines that run on the CPU."""
    return tensorrt_loading.load(engine_dir, _import, rank=rank, kv=kv, comm=comm)


def _import() -> Any:
    try:
        import tensorrt
    except ImportError as error:
        raise ToolchainError(
            f"TensorRT cannot be imported: {error}",
            hint="pip install tensorrt, of the version that built the plan",
        ) from error
    return tensorrt
