"""Runs networks with the torch references: the oracle other lowerings and transformers are held to.

Ranks run in lockstep in one process: each is a generator that stops at an op which communicates and
goes on when its peers have arrived.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llmc.plugins import graph
from llmc.plugins.graph import Network, OpCall
from llmc.runtime.batch import Batch

ReadTensor = Callable[[str], npt.NDArray[Any]]
Blocked = tuple[OpCall, torch.Tensor | None]


@dataclass(slots=True, kw_only=True)
class Rank:
    """One rank: its network, its weights by checkpoint name, and its KV pages."""

    network: Network
    read: ReadTensor
    kv_cache: torch.Tensor
    dtype: torch.dtype

    @classmethod
    def make(
        cls,
        network: Network,
        read: ReadTensor,
        *,
        num_blocks: int,
        tokens_per_block: int,
        dtype: torch.dtype = torch.float32,
    ) -> "Rank":
        layers = [call.attrs for call in network.ops if call.plugin == "attention"]
        kv_heads, head_size = layers[0]["num_kv_heads"], layers[0]["head_size"]
        shape = (len(layers), 2, num_blocks, tokens_per_block, kv_heads, head_size)
        # NaN: a read of a slot nobody wrote shows in the logits.
        return cls(
            network=network,
            read=read,
            kv_cache=torch.full(shape, torch.nan, dtype=dtype),  # type: ignore[arg-type]
            dtype=dtype,
        )

    def step(self, batch: Batch) -> Generator[Blocked, torch.Tensor | None, torch.Tensor | None]:
        """Run one step; yield (call, input) at a communicating op, expect what it receives."""
        fed = {item.name: torch.from_numpy(getattr(batch, item.name)) for item in fields(batch)}
        values = {"token_ids": fed["token_ids"]}
        for call in self.network.ops:
            inputs = [values[name] for name in call.inputs]
            spec = graph.spec(call.plugin)
            if spec.communicates:
                received = yield call, (inputs[0] if inputs else None)
                if call.outputs:
                    assert received is not None
                    values[call.outputs[0]] = received
                continue
            extra: dict[str, Any] = {name: fed[name] for name in spec.reads_batch}
            if spec.uses_kv_cache:
                extra["kv_cache"] = self.kv_cache
            module = graph.part(call.plugin, "reference")
            weights = {
                role: [self.read(name) for name in names]
                if call.attrs.get("stored_quantized") and not role.endswith("bias")
                else self._weight(call, names)
                for role, names in call.weights.items()
            }
            values[call.outputs[0]] = module.evaluate(*inputs, **weights, **call.attrs, **extra)
        return values[self.network.outputs[0]] if self.network.outputs else None

    def _weight(self, call: OpCall, names: Sequence[str]) -> torch.Tensor:
        whole = torch.cat([_to_torch(self.read(name)) for name in names])
        # A quantized weight keeps its dtype: its scales are rounded to it.
        return whole if call.attrs.get("quant", "none") != "none" else whole.to(self.dtype)


def run_step(ranks: Sequence[Rank], batch: Batch) -> torch.Tensor:
    """Run one step on every rank; return rank 0's logits [L, vocab], equal to all others'."""
    steps = [rank.step(batch) for rank in ranks]
    blocked: dict[int, Blocked] = {}
    results: dict[int, torch.Tensor | None] = {}

    def advance(rank: int, received: torch.Tensor | None) -> None:
        try:
            blocked[rank] = steps[rank].send(received)
        except StopIteration as stop:
            blocked.pop(rank, None)
            results[rank] = stop.value

    for rank in range(len(ranks)):
        advance(rank, None)
    while blocked:
        ready = next((r for r in blocked if _is_ready(r, blocked)), None)
        assert ready is not None, f"deadlock: {[(r, c.name) for r, (c, _) in blocked.items()]}"
        for rank, value in _exchange(ready, blocked).items():
            advance(rank, value)
    logits = results[0]
    assert logits is not None
    for other in results.values():
        assert other is None or torch.equal(other, logits)
    return logits


def _is_ready(rank: int, blocked: Mapping[int, Blocked]) -> bool:
    call, _ = blocked[rank]
    if call.plugin in ("send", "recv"):
        peer, _ = blocked.get(call.attrs["peer"], (None, None))  # type: ignore[arg-type]
        wanted = "recv" if call.plugin == "send" else "send"
        return peer is not None and peer.plugin == wanted and peer.attrs["peer"] == rank
    group: tuple[int, ...] = call.attrs["group"]  # type: ignore[assignment]
    return all(r in blocked and blocked[r][0].name == call.name for r in group)


def _exchange(rank: int, blocked: Mapping[int, Blocked]) -> dict[int, torch.Tensor | None]:
    """Return what each rank taking part in `rank`'s op receives."""
    call, value = blocked[rank]
    evaluate = graph.part(call.plugin, "reference").evaluate
    if call.plugin == "recv":
        return _exchange(call.attrs["peer"], blocked)  # type: ignore[arg-type]
    if call.plugin == "send":
        return {rank: None, call.attrs["peer"]: evaluate(value, **call.attrs)}  # type: ignore[dict-item]
    group: tuple[int, ...] = call.attrs["group"]  # type: ignore[assignment]
    outputs = evaluate([blocked[r][1] for r in group], **call.attrs)
    return dict(zip(group, outputs, strict=True))


def _to_torch(array: npt.NDArray[Any]) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
