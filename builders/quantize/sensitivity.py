"""How much the model's predictions change when one group of linears alone is quantized.

One pass over the layers, each in memory once: the hidden states of the plain model go on beside
those of every variant that differs in an earlier layer. A variant takes memory on disk, float32
[T, H]. A quantized linear is computed as its reference does, inputs rounded and all.

Legend: T tokens measured, H hidden_size, V variants: groups times formats.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.hf.preflight import HfModel
from llmc.builders.network import build_network
from llmc.builders.quantize.calibration import Calibration, ReadWhole, calibrate
from llmc.builders.quantize.decoder import open_decoder
from llmc.builders.quantize.mixed import (
    Group,
    Option,
    Sensitivities,
    mixture,
    module_groups,
    stored_bits,
)
from llmc.builders.quantize.site import Floats
from llmc.builders.quantize.source import TensorSource
from llmc.builders.quantize.texts import CalibrationData, load_calibration
from llmc.checkpoint import CheckpointConfig, Quantization
from llmc.errors import BuildError
from llmc.log import Progress
from llmc.mapping import Mapping as RankMapping
from llmc.plugins.graph import OpCall

log = logging.getLogger(__name__)

NUM_SEQUENCES = 4
SEQUENCE_TOKENS = 128
"""What is measured: few tokens rank groups, and every variant runs through all later layers."""

_HEAD_ROWS = 64
"""Tokens whose logits are held at once."""


def measure_sensitivities(
    model: HfModel,
    model_dir: Path,
    config: CheckpointConfig,
    candidates: Sequence[Quantization],
    what: Calibration,
    *,
    scratch: Path,
    progress: Progress,
) -> Sensitivities:
    """Measure each group of `module_groups` in each of `candidates`; leaving it plain costs none.

    `config` has dtype and architecture. Calibrated tensors stay in the state directory of `what`,
    where the conversion finds them. Hidden states of variants lie in `scratch`.
    Raises: what calibration raises, BuildError when the disk is too small.
    """
    plain = replace(config, mapping=RankMapping(), quantization=Quantization(), layout=None)
    num_groups = sum(1 for _ in module_groups(config.arch))
    formats = []
    for candidate in candidates:
        everywhere = replace(plain, quantization=mixture(config.arch, [candidate] * num_groups))
        formats.append(
            _Format(
                ops={op.name: op for op in build_network(everywhere, 0).ops},
                finished=calibrate(model, model_dir, everywhere, what, progress),
            )
        )
    data = load_calibration(
        what.data,
        model_dir,
        samples=NUM_SEQUENCES,
        max_tokens=SEQUENCE_TOKENS,
        vocab_size=config.arch.vocab_size,
    )
    source = TensorSource(model, config.dtype)
    kl = _walk(plain, formats, data, source, scratch / "variants.f32", progress)
    groups = []
    for (name, linears), own in zip(module_groups(config.arch), kl, strict=True):
        choices = [Quantization(), *candidates]
        options = tuple(
            Option(algo=choice.quant_algo, bits=stored_bits(linears, choice, config.dtype), kl=cost)
            for choice, cost in zip(choices, [0.0, *own.tolist()], strict=True)
        )
        groups.append(
            Group(
                name=name,
                layer=linears[0].layer or 0,
                modules=tuple(linear.name for linear in linears),
                num_weights=sum(linear.num_out * linear.num_in for linear in linears),
                options=options,
            )
        )
    return Sensitivities(num_tokens=data.num_tokens, groups=tuple(groups))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    """One candidate: the ops of a network that has it everywhere, and its calibrated tensors."""

    ops: Mapping[str, OpCall]
    finished: Mapping[str, ReadWhole]

    def linears(self, group: str) -> list[OpCall]:
        """Return the linear ops of a group."""
        prefix = f"{group}."
        ops = self.ops.values()
        return [op for op in ops if op.plugin == "linear" and op.name.startswith(prefix)]

    def tensors(self, linears: Sequence[OpCall]) -> dict[str, npt.NDArray[Any]]:
        """Read what is stored of some linears."""
        names = {name for op in linears for parts in op.weights.values() for name in parts}
        return {name: self.finished[name]() for name in names & self.finished.keys()}


def _walk(
    plain: CheckpointConfig,
    formats: Sequence[_Format],
    data: CalibrationData,
    source: TensorSource,
    path: Path,
    progress: Progress,
) -> npt.NDArray[np.float64]:
    """Return the mean KL [groups, formats] of each variant from the plain model."""
    decoder = open_decoder(plain, source.read, source.read_rows)
    num_layers = plain.arch.num_hidden_layers
    names = [name for name, _ in module_groups(plain.arch)]
    each, lengths = len(names) // num_layers, [len(ids) for ids in data.sequences]
    num_variants = len(names) * len(formats)
    log.info("sensitivity: %d variants of %d tokens", num_variants, data.num_tokens)
    hidden = decoder.embed(np.concatenate(data.sequences), lengths)
    needed, free = num_variants * hidden.nbytes, disk_usage(path.parent).free
    if needed > free:
        # A write through the map would end the process, not raise.
        needed_gib, free_gib = needed / 2**30, free / 2**30
        raise BuildError(f"{path.parent}: {free_gib:.1f} GiB free, expected {needed_gib:.1f} GiB")
    shape = (num_variants, *hidden.shape)
    variants: Floats = np.memmap(path, np.float32, "w+", shape=shape)
    added = each * len(formats)
    steps = sum(1 + added * (layer + 1) for layer in range(num_layers))
    progress.start("sensitivity", steps, unit="passes")
    try:
        for layer in range(num_layers):
            loaded, first = decoder.load(layer), added * layer
            for place in range(first):
                variants[place] = loaded.run(variants[place], lengths, {})
                progress.advance(1)
            place = first
            for name in names[each * layer : each * (layer + 1)]:
                for form in formats:
                    linears = form.linears(name)
                    changed = loaded.quantized(linears, form.tensors(linears))
                    variants[place] = changed.run(hidden, lengths, {})
                    place += 1
                    progress.advance(1)
            hidden = loaded.run(hidden, lengths, {})
            progress.advance(1)
        return _divergences(decoder.head, hidden, variants).reshape(len(names), -1)
    finally:
        decoder.close()
        progress.finish()
        path.unlink()


def _divergences(
    head: Callable[[Floats], Floats], hidden: Floats, variants: Floats
) -> npt.NDArray[np.float64]:
    """Return the mean KL(plain || variant) [V] of the next token, for hidden states [(V,) T, H]."""
    sums = np.zeros(len(variants))
    for start in range(0, len(hidden), _HEAD_ROWS):
        rows = slice(start, start + _HEAD_ROWS)
        wanted = _log_softmax(head(hidden[rows]))
        probability = np.exp(wanted)
        for place, variant in enumerate(variants):
            difference = wanted - _log_softmax(head(np.ascontiguousarray(variant[rows])))
            sums[place] += np.einsum("tv,tv->", probability, difference)
    # Rounding leaves equal distributions a hair below zero.
    return np.maximum(sums / len(hidden), 0.0)


def _log_softmax(logits: Floats) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide
