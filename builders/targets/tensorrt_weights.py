"""The weights a plan was built without, as a file the runtime refits it from.

They are made from the checkpoint as the lowering makes its constants: joined, turned, quantized.
"""

from pathlib import Path

import numpy as np

from llmc.builders.targets.tensorrt_network import lower_network, make_shape
from llmc.builders.targets.tensorrt_toolkit import Toolkit
from llmc.checkpoint import Checkpoint
from llmc.log import Progress
from llmc.tensors import TensorInfo
from llmc.weights import SafetensorsWriter

STORED_AS = {"int4": "uint8", "float4_e2m1": "uint8"}
"""Types smaller than a byte are stored as bytes of two; the file's metadata has what they are."""


def write_refit_weights(
    toolkit: Toolkit,
    checkpoint: Checkpoint,
    engine_dir: Path,
    *,
    max_seq_len: int,
    progress: Progress,
) -> list[Path]:
    """Write rank<N>.weights.safetensors for every rank into `engine_dir`; return the paths.

    A file appears whole or not at all. Peak memory is about three times the largest weight.
    Raises: UnsupportedError, BuildError (lower_network).
    """
    return [
        _write_rank(toolkit, checkpoint, rank, engine_dir, max_seq_len, progress)
        for rank in range(checkpoint.config.num_rank_files)
    ]


def _write_rank(
    toolkit: Toolkit,
    checkpoint: Checkpoint,
    rank: int,
    engine_dir: Path,
    max_seq_len: int,
    progress: Progress,
) -> Path:
    lowered = lower_network(
        toolkit,
        checkpoint.config,
        rank,
        max_seq_len=max_seq_len,
        weights="refit",
        file=checkpoint.rank(rank),
    )
    infos = [
        TensorInfo(
            name=weight.name,
            dtype=STORED_AS.get(weight.dtype, weight.dtype),
            shape=make_shape(weight.shape, weight.dtype),
        )
        for weight in lowered.weights.values()
    ]
    packed = {
        weight.name: weight.dtype
        for weight in lowered.weights.values()
        if weight.dtype in STORED_AS
    }
    path = engine_dir / f"rank{rank}.weights.safetensors"
    partial = path.with_suffix(".tmp")
    partial.unlink(missing_ok=True)
    progress.start(f"write {path.name}", sum(info.num_bytes for info in infos))
    with SafetensorsWriter(partial, infos, packed) as writer:
        for info in infos:
            array = np.ascontiguousarray(lowered.weights[info.name].make()).reshape(info.shape)
            writer.write(info.name, array)
            progress.advance(info.num_bytes)
    partial.rename(path)
    progress.finish()
    return path
