"""A decoder computed layer by layer on the CPU target's kernels.

Legend: T tokens of a chunk of whole sequences, H hidden_size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.quantize.decoder import (
    Int32s,
    Parts,
    ReadRows,
    ReadTensor,
    Stored,
)
from llmc.builders.quantize.observers import Observer
from llmc.builders.quantize.site import Floats
from llmc.builders.quantize.stage import Chunk, Stage
from llmc.checkpoint import CheckpointConfig
from llmc.plugins import native
from llmc.plugins.graph import OpCall

Weights = dict[str, npt.NDArray[Any]]


class KernelDecoder:
    """An unquantized decoder of which one layer at a time is in memory (`decoder.Decoder`)."""

    def __init__(self, config: CheckpointConfig, read: ReadTensor, read_rows: ReadRows) -> None:
        self.parts = Parts.of(config)
        self._dtype, self._read, self._read_rows = config.dtype, read, read_rows
        self._team = native.Team()
        self._head: Stage | None = None

    def embed(self, token_ids: Int32s, lengths: Sequence[int]) -> Floats:
        """Return the hidden states [T, H] that enter the first layer."""
        used, local = np.unique(token_ids, return_inverse=True)
        weights: Weights = {}
        ops = []
        for call in self.parts.before:
            is_table, attrs = call.plugin == "embedding", call.attrs
            for name in (name for names in call.weights.values() for name in names):
                weights[name] = (
                    self._read_rows(name, used.astype(np.int64)) if is_table else self._read(name)
                )
            if is_table:
                attrs = {**attrs, "num_embeddings": len(used)}
            ops.append(replace(call, attrs=attrs))
        stage = Stage(ops, weights.__getitem__, dtype=self._dtype, team=self._team)
        return stage.run(None, Chunk.of(lengths, local.reshape(-1).astype(np.int32)), {})

    def load(self, layer: int) -> "KernelLayer":
        """Read the weights of one layer."""
        ops = [_as_first(op) for op in self.parts.layers[layer]]
        names = {name for op in ops for parts in op.weights.values() for name in parts}
        weights = {name: self._read(name) for name in sorted(names)}
        return KernelLayer(ops, weights, {}, dtype=self._dtype, team=self._team)

    def head(self, hidden: Floats) -> Floats:
        """Return the logits [T, vocab] of hidden states that leave the last layer."""
        if self._head is None:
            self._head = Stage(self.parts.after, self._read, dtype=self._dtype, team=self._team)
        return self._head.run(hidden, Chunk.of([len(hidden)]), {})

    def close(self) -> None:
        """End the threads; the decoder is unusable afterwards."""
        self._team.close()


class KernelLayer:
    """One decoder layer in memory (`decoder.Layer`), its weights in the model's dtype."""

    def __init__(
        self,
        ops: Sequence[OpCall],
        weights: Weights,
        stored: Stored,
        *,
        dtype: str,
        team: native.Team,
    ) -> None:
        self._ops, self._weights, self._stored = ops, weights, stored
        self._dtype, self._team = dtype, team
        self.release()

    def weight(self, name: str) -> Floats:
        """Return a weight as float32."""
        return self._weights[name].astype(np.float32)

    def replace(self, name: str, values: Floats) -> None:
        """Let the layer go on with other values of a weight."""
        assert values.shape == self._weights[name].shape, (name, values.shape)
        self._weights[name] = values
        self.release()

    def quantized(self, linears: Sequence[OpCall], stored: Stored) -> "KernelLayer":
        """Return this layer with `linears` in place of its ops of the same names."""
        ops = {op.name: op for op in self._ops} | {op.name: op for op in linears}
        return KernelLayer(
            [*ops.values()], self._weights, stored, dtype=self._dtype, team=self._team
        )

    def run(
        self, hidden: Floats, lengths: Sequence[int], observers: Mapping[str, Observer]
    ) -> Floats:
        """Return the hidden states [T, H] after the layer."""
        return self._stage.run(hidden, Chunk.of(lengths), observers)

    def release(self) -> None:
        """Give up the program and the weights in the order of the kernels."""
        self._stage = Stage(self._ops, self._read_own, dtype=self._dtype, team=self._team)

    def _read_own(self, name: str) -> npt.NDArray[Any]:
        return self._stored[name] if name in self._stored else self._weights[name]


def _as_first(op: OpCall) -> OpCall:
    """Let the op's KV cache be the only one."""
    return replace(op, attrs={**op.attrs, "layer": 0}) if "layer" in op.attrs else op
