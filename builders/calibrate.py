"""Runs an unquantized decoder one layer at a time, in torch, and records what its linears see.

The network is `build_network`'s and its arithmetic the plugins' references, so every architecture
that can be built can be calibrated. A layer's weights are in memory only while it runs; the hidden
states between layers are the caller's.

Legend: T tokens of a chunk, H hidden_size. Everything is float32, on CUDA where torch has it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
import torch

from llmc.builders.network import build_network
from llmc.builders.quantize.site import InputStats
from llmc.checkpoint import CheckpointConfig, Quantization
from llmc.errors import CheckpointError
from llmc.mapping import Mapping as RankMapping
from llmc.plugins import graph
from llmc.plugins.graph import OpCall

Floats = npt.NDArray[np.float32]
ReadTensor = Callable[[str], npt.NDArray[Any]]
"""Name of a whole, unsplit checkpoint tensor → its values."""
ReadRows = Callable[[str, npt.NDArray[np.int64]], npt.NDArray[Any]]
"""The same, but only the rows asked for: an embedding is much larger than a calibration text."""


@dataclass(slots=True, kw_only=True)
class LinearObserver:
    """What one linear op's input and outputs were, summed up over every token seen.

    `row_stride`: every so many tokens an input row is kept as it is. `columns` are the output
    columns of each module that the op computes at once.
    """

    row_stride: int
    keep_hessian: bool
    columns: tuple[int, ...]
    num_tokens: int = 0
    _amax: torch.Tensor | None = None
    _abs_sum: torch.Tensor | None = None
    _hessian: torch.Tensor | None = None
    _rows: list[torch.Tensor] = field(default_factory=list)
    _output_amax: torch.Tensor | None = None

    def see(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Record a chunk: x [T, in], y [T, sum(columns)]."""
        amax = torch.maximum(x.amax(0), -x.amin(0))
        abs_sum = x.abs().sum(0, dtype=torch.float64)
        parts = torch.split(y, [*self.columns], dim=1)
        outputs = torch.stack([torch.maximum(part.amax(), -part.amin()) for part in parts])
        first = -self.num_tokens % self.row_stride
        self._rows.append(x[first :: self.row_stride].cpu().clone())
        self.num_tokens += x.shape[0]
        if self._amax is None or self._abs_sum is None or self._output_amax is None:
            self._amax, self._abs_sum, self._output_amax = amax, abs_sum, outputs
            self._hessian = x.T @ x if self.keep_hessian else None
            return
        torch.maximum(self._amax, amax, out=self._amax)
        torch.maximum(self._output_amax, outputs, out=self._output_amax)
        self._abs_sum += abs_sum
        if self._hessian is not None:
            self._hessian.addmm_(x.T, x)

    def stats(self) -> InputStats:
        """Return what was recorded of the input; the observer's own copy is given up."""
        assert self._amax is not None and self._abs_sum is not None, "nothing was seen"
        hessian, self._hessian = self._hessian, None
        rows, self._rows = torch.cat(self._rows).numpy(), []
        return InputStats(
            num_tokens=self.num_tokens,
            amax=self._amax.cpu().numpy(),
            mean_abs=(self._abs_sum / self.num_tokens).float().cpu().numpy(),
            rows=rows,
            hessian=None if hessian is None else (hessian / self.num_tokens).cpu().numpy(),
        )

    def output_amax(self) -> tuple[float, ...]:
        """Return the largest magnitude of each module's output, its bias included."""
        assert self._output_amax is not None, "nothing was seen"
        return tuple(float(value) for value in self._output_amax)


@dataclass(slots=True, kw_only=True)
class KvObserver:
    """Largest magnitude of what the KV cache holds: values, and keys after their rotation."""

    amax: float = 0.0


Observer = LinearObserver | KvObserver


class Decoder:
    """An unquantized decoder of which one layer at a time is in memory."""

    def __init__(self, config: CheckpointConfig, read: ReadTensor, read_rows: ReadRows) -> None:
        whole = replace(config, mapping=RankMapping(), quantization=Quantization())
        ops = build_network(whole, 0).ops
        self.num_layers = config.arch.num_hidden_layers
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._read, self._read_rows = read, read_rows
        self._layers: list[tuple[OpCall, ...]] = []
        for layer in range(self.num_layers):
            prefix = f"transformer.layers.{layer}."
            self._layers.append(tuple(op for op in ops if op.name.startswith(prefix)))
        self._before = ops[: ops.index(self._layers[0][0])]
        self._after = ops[ops.index(self._layers[-1][-1]) + 1 :]

    def layer_ops(self, layer: int) -> tuple[OpCall, ...]:
        """Return the calls of one layer, in order."""
        return self._layers[layer]

    def embed(self, token_ids: npt.NDArray[np.int32]) -> Floats:
        """Return the hidden states [T, H] that enter the first layer."""
        used, local = np.unique(token_ids, return_inverse=True)
        values: dict[str, torch.Tensor] = {"token_ids": torch.from_numpy(local.reshape(-1))}
        for call in self._before:
            weights, attrs = {}, dict(call.attrs)
            for role, names in call.weights.items():
                if call.plugin == "embedding":
                    attrs["num_embeddings"] = len(used)
                    parts = [self._read_rows(name, used.astype(np.int64)) for name in names]
                else:
                    parts = [self._read(name) for name in names]
                weights[role] = torch.cat([_to_torch(part) for part in parts])
            inputs = [values[name] for name in call.inputs]
            evaluate = graph.part(call.plugin, "reference").evaluate
            values[call.outputs[0]] = evaluate(*inputs, **weights, **attrs)
        (entering,) = {name for op in self._layers[0] for name in op.inputs if name in values}
        return values[entering].numpy()

    def load(self, layer: int) -> "LoadedLayer":
        """Read the weights of one layer."""
        ops = self._layers[layer]
        return LoadedLayer(ops, self._load(ops), self.device)

    def load_head(self) -> Callable[[Floats], Floats]:
        """Read what follows the last layer; return how hidden states [T, H] become logits."""
        ops = [op for op in self._after if op.plugin != "gather_last"]
        weights = self._load(ops)

        @torch.inference_mode()
        def logits(hidden: Floats) -> Floats:
            value = torch.from_numpy(hidden).to(self.device)
            for op in ops:
                (own,) = (weights[name] for name in op.weights["weight"])
                evaluate = graph.part(op.plugin, "reference").evaluate
                value = evaluate(value, weight=own, **op.attrs)
            return value.cpu().numpy()

        return logits

    def _load(self, ops: Sequence[OpCall]) -> dict[str, torch.Tensor]:
        names = {name for op in ops for parts in op.weights.values() for name in parts}
        return {name: _to_torch(self._read(name)).to(self.device) for name in sorted(names)}


class LoadedLayer:
    """One decoder layer in memory."""

    def __init__(
        self,
        ops: Sequence[OpCall],
        weights: dict[str, torch.Tensor],
        device: torch.device,
        stored: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> None:
        self._ops = ops
        self._weights = weights
        self._stored = stored or {}
        self._device = device
        written = {name for op in ops for name in op.outputs}
        (self._entering,) = {name for op in ops for name in op.inputs} - written
        self._last_use = {name: index for index, op in enumerate(ops) for name in op.inputs}

    def weight(self, name: str) -> Floats:
        """Return a weight as float32; the array is the layer's own when it is on the CPU."""
        return self._weights[name].cpu().numpy()

    def replace(self, name: str, values: Floats) -> None:
        """Let the layer go on with other values of a weight."""
        assert values.shape == tuple(self._weights[name].shape), (name, values.shape)
        self._weights[name] = torch.from_numpy(values).to(self._device)

    def quantized(
        self, linears: Sequence[OpCall], stored: Mapping[str, npt.NDArray[Any]]
    ) -> "LoadedLayer":
        """Return this layer with `linears` in place of its ops of the same names.

        `stored` are the tensors that a checkpoint has of them; what a target quantizes at build is
        taken from the layer's own weights, which are shared.
        """
        ops = {op.name: op for op in self._ops} | {op.name: op for op in linears}
        return LoadedLayer(tuple(ops.values()), self._weights, self._device, stored)

    @torch.inference_mode()
    def run(
        self, hidden: Floats, lengths: Sequence[int], observers: Mapping[str, Observer]
    ) -> Floats:
        """Return the hidden states [T, H] after the layer, for whole sequences of these lengths.

        `observers` are told of the ops they are named after.
        """
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
            observer.see(inputs[0], output)
        elif isinstance(observer, KvObserver):
            observer.amax = max(observer.amax, float(extra["kv_cache"].abs().amax()))
        return output

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


def tokenize(tokenizer_file: Path, texts: Iterator[str]) -> Iterator[list[int]]:
    """Yield the token ids of each text. Raises: CheckpointError when the tokenizer is at fault."""
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{tokenizer_file}: cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for text in texts:
        yield tokenizer.encode(text).ids


def _batch(lengths: Sequence[int], device: torch.device) -> dict[str, torch.Tensor]:
    """Return the batch fields of whole sequences, each in a KV block of its own."""
    counts = torch.tensor(lengths, dtype=torch.int32)
    ends = torch.cumsum(counts, 0, dtype=torch.int32)
    fields = {
        "positions": torch.cat([torch.arange(n, dtype=torch.int32) for n in lengths]),
        "query_start": torch.cat([torch.zeros(1, dtype=torch.int32), ends]),
        "context_lens": counts,
        "block_tables": torch.arange(len(lengths), dtype=torch.int32)[:, None],
    }
    return {name: value.to(device) for name, value in fields.items()}


def _to_torch(array: npt.NDArray[Any]) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).float()
    return torch.from_numpy(array).float()
