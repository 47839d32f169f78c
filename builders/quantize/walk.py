"""Quantizes a decoder layer after layer, in the memory of one.

For each layer: run it over all calibration tokens from the hidden states on disk, quantize its
sites from what was observed, keep the tensors and the next hidden states, go on. Whatever stops
this, the next run goes on with the first layer that is not kept.
"""

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from llmc.builders.quantize.decoder import (
    Decoder,
    Layer,
    ReadRows,
    ReadTensor,
    arithmetic,
    open_decoder,
)
from llmc.builders.quantize.experts import quantize_experts
from llmc.builders.quantize.memory import CHUNK_TOKENS, KEPT_ROWS, sites_at_once
from llmc.builders.quantize.observers import (
    ExpertsObserver,
    KvObserver,
    LinearObserver,
    Observer,
    Watch,
)
from llmc.builders.quantize.rounding import restored_weight
from llmc.builders.quantize.site import Algorithm, Module, Settings, Site, Tensors
from llmc.builders.quantize.state import State
from llmc.builders.quantize.texts import CalibrationData
from llmc.checkpoint import CheckpointConfig, Quantization, tensor_specs
from llmc.log import Progress
from llmc.mapping import Mapping as RankMapping
from llmc.plugins.graph import OpCall
from llmc.quant.format import load_format

log = logging.getLogger(__name__)

_KV_RANGES = {"INT8": 127.0, "FP8": 448.0}


@dataclass(slots=True, kw_only=True)
class Walk:
    """One calibration. `algorithm` None: only the KV cache is quantized."""

    config: CheckpointConfig
    algorithm: Algorithm | None
    settings: Settings
    data: CalibrationData
    read: ReadTensor
    read_rows: ReadRows
    state: State
    progress: Progress
    threads: int = 1
    _chunks: list[list[int]] = field(default_factory=list)
    _segments: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def run(self) -> None:
        """Do every layer that `state` does not hold yet."""
        self._chunks = list(chunked([len(ids) for ids in self.data.sequences]))
        plain = replace(self.config, mapping=RankMapping(), quantization=Quantization())
        specs = tensor_specs(plain, 0)
        self._segments = {
            spec.name: tuple(segment.length for segment in spec.segments)
            for spec in specs
            if spec.axis == 0
        }
        sizes = {spec.layer: 0 for spec in specs}
        for spec in specs:
            sizes[spec.layer] += 4 * prod(spec.shape)
        layers = [sizes[layer] for layer in range(self.config.arch.num_hidden_layers)]
        log.info(
            "calibration: %d sequences, %d tokens, %d layers, on %s",
            *(len(self.data.sequences), self.data.num_tokens, len(layers), arithmetic()),
        )
        self.progress.start("calibration", sum(layers))
        try:
            with (
                closing(open_decoder(self.config, self.read, self.read_rows)) as decoder,
                ThreadPoolExecutor(1) as keeper,
            ):
                if self.state.next_layer == 0:
                    self._embed(decoder)
                self.progress.advance(sum(layers[: self.state.next_layer]))
                kept: Future[None] | None = None
                for layer in range(self.state.next_layer, len(layers)):
                    tensors = self._do_layer(decoder, layer, layers[layer])
                    if kept is not None:
                        kept.result()
                    # While it is written and flushed the next layer runs.
                    kept = keeper.submit(self.state.finish_layer, layer, tensors)
                if kept is not None:
                    kept.result()
        finally:
            self.progress.finish()

    def _embed(self, decoder: Decoder) -> None:
        ids, start = np.concatenate(self.data.sequences), 0
        with self.state.write_hidden(0) as writer:
            for lengths in self._chunks:
                stop = start + sum(lengths)
                writer.append(decoder.embed(ids[start:stop], lengths))
                start = stop

    def _do_layer(self, decoder: Decoder, layer: int, size: int) -> Tensors:
        meter = _Meter(self.progress, size)
        loaded = decoder.load(layer)
        ops = decoder.parts.layers[layer]
        observers = self._observers(ops)
        last = layer + 1 == len(decoder.parts.layers)
        propagates = self.algorithm is not None and self.algorithm.propagates
        self._pass(loaded, layer, observers, meter, write=not last and not propagates)
        loaded.release()
        tensors = self._quantize(ops, loaded, observers, meter)
        if not last and propagates:
            for module in [name for name in tensors if name.endswith(".weight")]:
                name = module.removesuffix(".weight")
                loaded.replace(module, restored_weight(name, tensors, self.settings))
            self._pass(loaded, layer, {}, None, write=True)
        meter.fill()
        return tensors

    def _pass(
        self,
        loaded: Layer,
        layer: int,
        observers: Mapping[str, Observer],
        meter: "_Meter | None",
        *,
        write: bool,
    ) -> None:
        """Run the layer over all tokens; `write` keeps what comes out for the next."""
        width, start = self.config.arch.hidden_size, 0
        with self.state.write_hidden(layer + 1) if write else nullcontext() as writer:
            for lengths in self._chunks:
                stop = start + sum(lengths)
                hidden = self.state.read_hidden(layer, start, stop, width)
                after = loaded.run(hidden, lengths, observers)
                if writer is not None:
                    writer.append(after)
                if meter is not None:
                    meter.add((stop - start) / self.data.num_tokens / 2)
                start = stop

    def _observers(self, ops: tuple[OpCall, ...]) -> dict[str, Observer]:
        """Return what each op of a layer is watched with."""
        observers: dict[str, Observer] = {}
        for op in ops:
            if op.plugin == "linear" and self._quantized(op):
                assert self.algorithm is not None
                columns = tuple(self._out_features(name, op) for name in op.weights["weight"])
                watch = Watch(
                    row_stride=-(-self.data.num_tokens // KEPT_ROWS),
                    keep_hessian=self.algorithm.needs_hessian,
                    columns=columns if load_format(self.settings.algo).reads_output else None,
                )
                observers[op.name] = LinearObserver(watch=watch)
            elif op.plugin == "moe" and self._quantized(op):
                observers[op.name] = ExpertsObserver()
            elif op.plugin == "attention" and self.config.quantization.kv_cache_quant_algo:
                observers[op.name] = KvObserver()
        return observers

    def _quantized(self, op: OpCall) -> bool:
        if self.algorithm is None:
            return False
        role = "fc_weight" if op.plugin == "moe" else "weight"
        modules = [name.removesuffix(".weight") for name in op.weights[role]]
        return all(self.config.quantization.quantizes(module) for module in modules)

    def _out_features(self, name: str, op: OpCall) -> int:
        whole = op.attrs["out_features"]
        assert isinstance(whole, int)
        return sum(self._segments[name]) if len(op.weights["weight"]) > 1 else whole

    def _quantize(
        self,
        ops: tuple[OpCall, ...],
        loaded: Layer,
        observers: Mapping[str, Observer],
        meter: "_Meter",
    ) -> Tensors:
        def work(op: OpCall) -> Tensors:
            observer = observers.get(op.name)
            if isinstance(observer, LinearObserver):
                assert self.algorithm is not None and self.algorithm.quantize is not None
                site = self._site(op, ops, loaded, observer)
                return self.algorithm.quantize(site, self.settings)
            if isinstance(observer, ExpertsObserver):
                assert self.algorithm is not None
                names = [*op.weights["fc_weight"], *op.weights["proj_weight"]]
                weights = {name.removesuffix(".weight"): loaded.weight(name) for name in names}
                return quantize_experts(self.algorithm, self.settings, weights, observer)
            if isinstance(observer, KvObserver):
                kv_algo = self.config.quantization.kv_cache_quant_algo
                scale = kv_scale(observer.amax, str(kv_algo))
                return {f"{op.name}.kv_cache_scaling_factor": np.array([scale], np.float32)}
            return {}

        at_once = 1
        if self.algorithm is not None:
            at_once = sites_at_once(self.config, self.algorithm, most=self.threads)
        tensors: Tensors = {}
        with ThreadPoolExecutor(at_once) as pool:
            for found in pool.map(work, ops):
                tensors |= found
                meter.add(0.5 / len(ops))
        return tensors

    def _site(
        self, op: OpCall, ops: tuple[OpCall, ...], loaded: Layer, observer: LinearObserver
    ) -> Site:
        names = op.weights["weight"]
        outputs: tuple[float | None, ...] = observer.output_amax() or (None,) * len(names)
        modules = []
        for name, amax in zip(names, outputs, strict=True):
            weight = loaded.weight(name)
            parts = self._segments.get(name) or (len(weight),)
            module = name.removesuffix(".weight")
            modules.append(Module(name=module, weight=weight, parts=parts, output_amax=amax))
        norm = _folding_norm(op, ops)
        folded = {} if norm is None else norm.weights
        held = {f"norm_{role}": loaded.weight(name) for role, (name,) in folded.items()}
        return Site(
            modules=tuple(modules),
            stats=observer.stats(),
            norm=None if norm is None else norm.name,
            **held,
        )


def chunked(lengths: list[int]) -> Iterator[list[int]]:
    """Yield runs of sequence lengths of at most CHUNK_TOKENS together, or one sequence."""
    run: list[int] = []
    for length in lengths:
        if run and sum(run) + length > CHUNK_TOKENS:
            yield run
            run = []
        run.append(length)
    if run:
        yield run


def kv_scale(amax: float, kv_algo: str) -> float:
    """Return attention.kv_cache_scaling_factor for the largest magnitude in the cache.

    FP8 is left alone unless it would overflow. Source: NVIDIA/ModelOpt 0.37 export (FP8: at least
    1); NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/llama/convert.py (INT8: amax / 127). Theirs is
    the amax of q, k and v before the rotation; ours of what the cache holds.
    """
    scale = amax / _KV_RANGES[kv_algo]
    return max(scale, 1.0) if kv_algo == "FP8" else scale or 1.0


def _folding_norm(op: OpCall, ops: tuple[OpCall, ...]) -> OpCall | None:
    """Return the norm whose output `op` alone reads, or None."""
    (value,) = op.inputs
    readers = [other for other in ops if value in other.inputs]
    writers = [other for other in ops if value in other.outputs]
    if len(readers) == 1 and writers and writers[0].plugin in ("rms_norm", "layer_norm"):
        return writers[0]
    return None


class _Meter:
    """Advances a progress by shares of a layer's size, in whole units that add up."""

    def __init__(self, progress: Progress, size: int) -> None:
        self._progress, self._size = progress, size
        self._share, self._told = 0.0, 0

    def add(self, share: float) -> None:
        self._share += share
        self._tell(min(self._size, int(self._share * self._size)))

    def fill(self) -> None:
        self._tell(self._size)

    def _tell(self, position: int) -> None:
        self._progress.advance(max(0, position - self._told))
        self._told = max(self._told, position)
