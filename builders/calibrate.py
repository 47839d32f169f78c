"""Runs an unquantized decoder one layer at a time in torch, for CUDA (quantize.decoder.Decoder).

Its arithmetic is the plugins' references. On a CPU quantize.kernels is faster, and as exact.

Legend: T tokens of a chunk of whole sequences, H hidden_size. Everything is float32.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llmc.builders.quantize.decoder import Int32s, Parts, ReadRows, ReadTensor, Stored, entering
from llmc.builders.quantize.observers import (
    ExpertsObserver,
    KvObserver,
    LinearObserver,
    Observer,
)
from llmc.builders.quantize.site import Floats
from llmc.checkpoint import CheckpointConfig
from llmc.plugins import graph
from llmc.plugins.graph import OpCall
from llmc.plugins.moe.reference import gated_rows


def has_cuda() -> bool:
    """Say whether torch can compute on a GPU."""
    return torch.cuda.is_available()


class TorchDecoder:
    """An unquantized decoder of which one layer at a time is in memory."""

    def __init__(
        self, config: CheckpointConfig, read: ReadTensor, read_rows: ReadRows, *, device: str
    ) -> None:
        self.parts = Parts.of(config)
        self._read, self._read_rows = read, read_rows
        self._device = torch.device(device)
        self._head: dict[str, torch.Tensor] = {}

    def embed(self, token_ids: Int32s, lengths: Sequence[int]) -> Floats:
        """Return the hidden states [T, H] that enter the first layer."""
        used, local = np.unique(token_ids, return_inverse=True)
        batch = _batch(lengths, torch.device("cpu"))
        values: dict[str, torch.Tensor] = {"token_ids": torch.from_numpy(local.reshape(-1))}
        for call in self.parts.before:
            weights, attrs = {}, dict(call.attrs)
            for role, names in call.weights.items():
                if call.plugin == "embedding":
                    attrs["num_embeddings"] = len(used)
                    parts = [self._read_rows(name, used.astype(np.int64)) for name in names]
                else:
                    parts = [self._read(name) for name in names]
                weights[role] = torch.cat([_to_torch(part) for part in parts])
            inputs = [values[name] for name in call.inputs]
            extra = {name: batch[name] for name in graph.spec(call.plugin).reads_batch}
            evaluate = graph.part(call.plugin, "reference").evaluate
            values[call.outputs[0]] = evaluate(*inputs, **weights, **attrs, **extra)
        return values[self.parts.before[-1].outputs[0]].numpy()

    def load(self, layer: int) -> "TorchLayer":
        """Read the weights of one layer."""
        ops = self.parts.layers[layer]
        return TorchLayer(ops, self._load(ops), self._device)

    @torch.inference_mode()
    def head(self, hidden: Floats) -> Floats:
        """Return the logits [T, vocab] of hidden states that leave the last layer."""
        ops = self.parts.after
        self._head = self._head or self._load(ops)
        values = {entering(ops): torch.from_numpy(hidden).to(self._device)}
        for op in ops:
            weights = {role: self._head[name] for role, (name,) in op.weights.items()}
            evaluate = graph.part(op.plugin, "reference").evaluate
            inputs = [values[name] for name in op.inputs]
            values[op.outputs[0]] = evaluate(*inputs, **weights, **op.attrs)
        return values[ops[-1].outputs[0]].cpu().numpy()

    def close(self) -> None:
        """Forget the head's weights."""
        self._head = {}

    def _load(self, ops: Sequence[OpCall]) -> dict[str, torch.Tensor]:
        names = {name for op in ops for parts in op.weights.values() for name in parts}
        return {name: _to_torch(self._read(name)).to(self._device) for name in sorted(names)}


class TorchLayer:
    """One decoder layer in memory."""

    def __init__(
        self,
        ops: Sequence[OpCall],
        weights: dict[str, torch.Tensor],
        device: torch.device,
        stored: Stored | None = None,
    ) -> None:
        self._ops = ops
        self._weights = weights
        self._stored = stored or {}
        self._device = device
        self._entering = entering(ops)
        self._last_use = {name: index for index, op in enumerate(ops) for name in op.inputs}

    def weight(self, name: str) -> Floats:
        """Return a weight as float32; the array is the layer's own when it is on the CPU."""
        return self._weights[name].cpu().numpy()

    def replace(self, name: str, values: Floats) -> None:
        """Let the layer go on with other values of a weight."""
        assert values.shape == tuple(self._weights[name].shape), (name, values.shape)
        self._weights[name] = torch.from_numpy(values).to(self._device)

    def quantized(self, linears: Sequence[OpCall], stored: Stored) -> "TorchLayer":
        """Return this layer with `linears` in place of its ops of the same names."""
        ops = {op.name: op for op in self._ops} | {op.name: op for op in linears}
        return TorchLayer(tuple(ops.values()), self._weights, self._device, stored)

    @torch.inference_mode()
    def run(
        self, hidden: Floats, lengths: Sequence[int], observers: Mapping[str, Observer]
    ) -> Floats:
        """Return the hidden states [T, H] after the layer."""
        batch = _batch(lengths, self._device)
        values = {self._entering: torch.from_numpy(hidden).to(self._device)}
        for index, call in enumerate(self._ops):
            inputs = [values[name] for name in call.inputs]
            for name in call.inputs:
                if self._last_use[name] == index:
                    values.pop(name, None)
            values[call.outputs[0]] = self._evaluate(call, inputs, batch, observers.get(call.name))
        return values[self._ops[-1].outputs[0]].cpu().numpy()

    def _evaluate(
        self,
        call: OpCall,
        inputs: list[torch.Tensor],
        batch: dict[str, torch.Tensor],
        observer: Observer | None,
    ) -> torch.Tensor:
        spec, attrs = graph.spec(call.plugin), dict(call.attrs)
        extra = {name: batch[name] for name in spec.reads_batch}
        if spec.uses_kv_cache:
            attrs["layer"] = 0
            heads, head_size = attrs["num_kv_heads"], attrs["head_size"]
            assert isinstance(heads, int) and isinstance(head_size, int)
            longest = int(batch["context_lens"].max())
            shape = (1, 2, len(batch["context_lens"]), longest, heads, head_size)
            extra["kv_cache"] = torch.zeros(shape, device=self._device)
        evaluate = graph.part(call.plugin, "reference").evaluate
        if isinstance(observer, LinearObserver) and len(call.weights["weight"]) > 1:
            output = self._fused(call, inputs[0])
        elif call.attrs.get("quant", "none") != "none":
            output = self._rounded(call, inputs[0])
        else:
            weights = {
                role: torch.cat([self._weights[name] for name in names])
                if len(names) > 1
                else self._weights[names[0]]
                for role, names in call.weights.items()
            }
            output = evaluate(*inputs, **weights, **attrs, **extra)
        if isinstance(observer, LinearObserver):
            x = inputs[0]
            gram = (x.T @ x).cpu().numpy() if observer.watch.keep_hessian else None
            observer.see_input(x.cpu().numpy(), gram)
            if observer.watch.columns is not None:
                observer.see_output(output.cpu().numpy())
        elif isinstance(observer, ExpertsObserver):
            observer.see_input(inputs[0].cpu().numpy())
            for gated in gated_rows(inputs[0], inputs[1], call, weights):
                observer.see_output(gated.cpu().numpy())
        elif isinstance(observer, KvObserver):
            observer.see(float(extra["kv_cache"].abs().amax()))
        return output

    def release(self) -> None:
        """There is nothing that only `run` needs."""

    def _rounded(self, call: OpCall, x: torch.Tensor) -> torch.Tensor:
        """Evaluate a quantized linear; its reference rounds on the CPU."""
        is_stored = call.attrs["stored_quantized"]
        weights: dict[str, Any] = {}
        for role, names in call.weights.items():
            if is_stored and role != "bias":
                weights[role] = [self._stored[name] for name in names]
            else:
                weights[role] = torch.cat([self._weights[name].cpu() for name in names])
        evaluate = graph.part("linear", "reference").evaluate
        output: torch.Tensor = evaluate(x.cpu(), **weights, **call.attrs)
        return output.to(self._device)

    def _fused(self, call: OpCall, x: torch.Tensor) -> torch.Tensor:
        """Evaluate a linear of several modules one by one: no second copy of their weights."""
        evaluate = graph.part("linear", "reference").evaluate
        biases = call.weights.get("bias", ())
        columns = sum(self._weights[name].shape[0] for name in call.weights["weight"])
        whole = torch.empty(x.shape[0], columns, device=self._device)
        start = 0
        for index, name in enumerate(call.weights["weight"]):
            weight = self._weights[name]
            stop = start + weight.shape[0]
            attrs = {**call.attrs, "out_features": weight.shape[0]}
            bias = self._weights[biases[index]] if biases else None
            whole[:, start:stop] = evaluate(x, weight=weight, bias=bias, **attrs)
            start = stop
        return whole


def _batch(lengths: Sequence[int], device: torch.device) -> dict[str, torch.Tensor]:
    """Return the batch fields of whole sequences, each in a KV block of its own."""
    counts = torch.tensor(lengths, dtype=torch.int32)
    ends = torch.cumsum(counts, 0, dtype=torch.int32)
    fields = {
        "positions": torch.cat([torch.arange(n, dtype=torch.int32) for n in lengths]),
        "query_start": torch.cat([torch.zeros(1, dtype=torch.int32), ends]),
        "context_lens": counts,
        "prompt_lens": counts,
        "block_tables": torch.arange(len(lengths), dtype=torch.int32)[:, None],
    }
    return {name: value.to(device) for name, value in fields.items()}


def _to_torch(array: npt.NDArray[Any]) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).float()
    return torch.from_numpy(array).float()
