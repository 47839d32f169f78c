"""Consecutive ops of a network as a CPU program in memory, whose linears can be watched.

The program is written like a pipeline stage in the middle of a model: it receives what enters and
hands out what leaves. What is observed is handed out as well, to a peer of its own. Plain weights
are float32, whatever the instruction set, and results depend neither on the number of threads nor
on what else is in the chunk.

Legend: T tokens of a chunk of whole sequences.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.quantize.decoder import Int32s, entering
from llmc.builders.quantize.observers import ExpertsObserver, KvObserver, Observer
from llmc.builders.quantize.site import Floats
from llmc.builders.targets.cpu import kv_shape
from llmc.builders.targets.cpu_fusion import fuse
from llmc.plugins import graph, native
from llmc.plugins.cpu_memory import Arena
from llmc.plugins.cpu_program import CpuOp, KvShape, Program, Rows, Value
from llmc.plugins.cpu_step import BoundProgram, Memory
from llmc.plugins.graph import Attr, Network, OpCall

BLOCK_TOKENS = 32
"""Tokens of a KV block. Sequences are whole, so that its size matters to nobody."""

_ALIGNMENT = 64
_NO_KV = KvShape(
    num_layers=0, num_kv_heads=0, head_size=0, tokens_per_block=BLOCK_TOKENS, dtype="float32"
)

ReadStored = Callable[[str], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Whole sequences, each in KV blocks of its own (plugins.cpu_step.StepBatch)."""

    token_ids: Int32s
    positions: Int32s
    query_start: Int32s
    context_lens: Int32s
    block_tables: Int32s
    logits_rows: Int32s
    prompt_lens: Int32s

    @classmethod
    def of(cls, lengths: Sequence[int], token_ids: Int32s | None = None) -> "Chunk":
        """Return sequences of these lengths; without ids nothing may read them."""
        blocks = [-(-length // BLOCK_TOKENS) for length in lengths]
        tables = np.zeros((len(lengths), max(blocks)), np.int32)
        for row, own in enumerate(blocks):
            tables[row, :own] = np.arange(own) + sum(blocks[:row])
        return cls(
            token_ids=np.zeros(sum(lengths), np.int32) if token_ids is None else token_ids,
            positions=np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
            query_start=np.cumsum([0, *lengths], dtype=np.int32),
            context_lens=np.array(lengths, np.int32),
            block_tables=tables,
            logits_rows=np.zeros(0, np.int32),
            prompt_lens=np.array(lengths, np.int32),
        )

    @property
    def num_tokens(self) -> int:
        return len(self.positions)

    @property
    def num_sequences(self) -> int:
        return len(self.context_lens)

    @property
    def num_blocks(self) -> int:
        return int(self.block_tables.max()) + 1


class Stage:
    """The ops, a program once they are first run."""

    def __init__(
        self, ops: Sequence[OpCall], read: ReadStored, *, dtype: str, team: native.Team
    ) -> None:
        """`dtype` is the model's, in which weights that are quantized at build are rounded."""
        self._ops, self._read, self._dtype, self._team = ops, read, dtype, team
        self._written: _Written | None = None
        self._bound: BoundProgram | None = None
        self._kv = Arena(0)
        self._room = (0, 0)

    def run(self, hidden: Floats | None, chunk: Chunk, observers: Mapping[str, Observer]) -> Floats:
        """Return what the last op writes, from `hidden` [T, columns] or, None, the token ids."""
        seen = {n: one for n, one in observers.items() if not isinstance(one, KvObserver)}
        watched = {
            name: isinstance(one, ExpertsObserver) or one.watch.columns is not None
            for name, one in seen.items()
        }
        columns = None if hidden is None else hidden.shape[1]
        written, bound = self._bind(chunk, watched, columns)

        def communicate(op: CpuOp, inputs: tuple[Floats, ...], outputs: tuple[Floats, ...]) -> None:
            if op.kind == "recv":
                outputs[0][:] = hidden
                return
            assert op.peer is not None
            observer = seen[self._ops[op.peer // 2].name]
            (observer.see_output if op.peer % 2 else observer.see_input)(inputs[0])

        bound.run(chunk, communicate)
        for observer in observers.values():
            if isinstance(observer, KvObserver):
                # What no token of this layer has written is zero.
                kept = np.frombuffer(self._kv.view(0, self._kv.num_bytes), np.float32)
                observer.see(float(max(kept.max(), -kept.min())))
        assert written.program.output is not None
        return bound.buffers.array(written.program.output, chunk.num_tokens).copy()

    def _bind(
        self, chunk: Chunk, watched: dict[str, bool], columns: int | None
    ) -> tuple["_Written", BoundProgram]:
        """Return the program, written for what is watched and with room for the chunk."""
        longest = int(chunk.context_lens.max())
        written = self._written
        if written is None or written.watched != watched or written.max_seq_len < longest:
            written = self._written = self._write(watched, columns, longest)
            self._bound = None
        max_tokens, max_blocks = self._room
        if self._bound is None or chunk.num_tokens > max_tokens or chunk.num_blocks > max_blocks:
            self._room = (max(max_tokens, chunk.num_tokens), max(max_blocks, chunk.num_blocks))
            kv = written.program.kv
            layer_bytes = self._room[1] * kv.block_bytes
            self._kv = Arena(kv.num_layers * layer_bytes)
            addresses = {name: array.ctypes.data for name, array in written.tensors.items()}
            memory = Memory(tensors=addresses, kv=self._kv, layer_bytes=layer_bytes)
            self._bound = BoundProgram(
                written.program, memory, self._team, max_tokens=self._room[0], max_logits=0
            )
        return written, self._bound

    def _write(self, watched: dict[str, bool], columns: int | None, max_seq_len: int) -> "_Written":
        lowering = _Lowering(read_one=self._read, max_seq_len=max_seq_len)
        network = fuse(self._network(watched, columns))
        ops: list[CpuOp] = []
        for call in network.ops:
            lowering.widens = call.attrs.get("quant", "none") == "none"
            lowering.dtype = "float32" if lowering.widens else self._dtype
            ops += graph.part(call.plugin, "cpu").lower(call, lowering)
            if call.plugin == "moe" and call.name in watched:
                ops.append(self._send_gated(call))
        kv = _NO_KV
        if any(graph.spec(call.plugin).uses_kv_cache for call in network.ops):
            kv = kv_shape(network.ops, tokens_per_block=BLOCK_TOKENS, dtype="float32")
        program = Program(ops=tuple(ops), values=lowering.values, output=network.outputs[0], kv=kv)
        return _Written(
            program=program, tensors=lowering.tensors, watched=watched, max_seq_len=max_seq_len
        )

    def _network(self, watched: dict[str, bool], columns: int | None) -> Network:
        """Return the ops between what they receive and what they hand out.

        Peer 2 i gets the input of op i, peer 2 i + 1 its output (of experts, what their second
        product reads).
        """
        calls: list[OpCall] = []
        if columns is not None:
            attrs: dict[str, Attr] = {"rows": "T", "num_columns": columns, "peer": 0}
            value = entering(self._ops)
            calls.append(
                OpCall(plugin="recv", name="entering", inputs=(), outputs=(value,), attrs=attrs)
            )
        for place, call in enumerate(self._ops):
            if call.name in watched:
                num_in = call.attrs["hidden_size" if call.plugin == "moe" else "in_features"]
                calls.append(_send(call.inputs[0], num_in, 2 * place))
            calls.append(call)
            if watched.get(call.name) and call.plugin != "moe":
                calls.append(_send(call.outputs[0], call.attrs["out_features"], 2 * place + 1))
        inputs = ("token_ids",) if columns is None else ()
        return Network(ops=tuple(calls), inputs=inputs, outputs=self._ops[-1].outputs)

    def _send_gated(self, call: OpCall) -> CpuOp:
        """Hand out what experts multiply second; no value of the network, one of the lowering."""
        place = next(i for i, op in enumerate(self._ops) if op.name == call.name)
        return CpuOp(
            kind="send",
            name=f"send {2 * place + 1}",
            inputs=(f"{call.name}.fc:out",),
            outputs=(),
            peer=2 * place + 1,
        )


def _send(value: str, columns: Attr, peer: int) -> OpCall:
    attrs: dict[str, Attr] = {"rows": "T", "num_columns": columns, "peer": peer}
    return OpCall(plugin="send", name=f"send {peer}", inputs=(value,), outputs=(), attrs=attrs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A program, the tensors it points at, and what it was written for."""

    program: Program
    tensors: dict[str, npt.NDArray[Any]]
    watched: dict[str, bool]
    max_seq_len: int


@dataclass(slots=True, kw_only=True)
class _Lowering:
    """Keeps what is lowered in memory (plugins.cpu_lowering.Lowering).

    With `widens` weights are read as float32.
    """

    read_one: ReadStored
    max_seq_len: int
    dtype: str = "float32"
    widens: bool = True
    kv_dtype: str = "float32"
    tokens_per_block: int = BLOCK_TOKENS
    tensors: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)

    def read(self, names: tuple[str, ...]) -> npt.NDArray[Any]:
        parts = [self.read_one(name) for name in names]
        if self.widens:
            parts = [part.astype(np.float32, copy=False) for part in parts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def read_part(self, name: str, index: int) -> npt.NDArray[Any]:
        part: npt.NDArray[Any] = self.read_one(name)[index]
        return part.astype(np.float32, copy=False) if self.widens else part

    def write(self, name: str, array: npt.NDArray[Any], *, resident: bool = True) -> str:
        if name not in self.tensors:
            self.tensors[name] = _aligned(array)
        return name

    def write_parts(self, name: str, count: int, parts: Iterable[npt.NDArray[Any]]) -> str:
        stacked = np.stack(list(parts))
        assert len(stacked) == count, (name, stacked.shape, count)
        return self.write(name, stacked)

    def add_value(self, name: str, rows: Rows, columns: int) -> None:
        assert name not in self.values, name
        self.values[name] = Value(rows=rows, columns=columns)

    def rows(self, value: str) -> Rows:
        return self.values[value].rows


def _aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a contiguous copy that begins where vector loads do not cross cache lines."""
    whole = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % _ALIGNMENT
    copy = whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
