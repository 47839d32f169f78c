"""The decoder as a program of fused ops, per rank, read from a checkpoint's config alone.

`program` owns the order of blocks and the stages, `attention` and `mlp` a block each, `writer` the
calls of single ops and where the collectives stand. Targets walk the result.
"""

from llmc.builders.network.program import build_network, unsupported

__all__ = ["build_network", "unsupported"]
