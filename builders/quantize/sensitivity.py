"""How much the model's predictions change when one group of linears alone is quantized.

One pass over the layers, each in memory once: the hidden states of the plain model go on beside
those of every variant that differs in an earlier layer. They are on disk, float32 [T, H] each, so
that whatever stops this, the next run goes on with the layer it was at. A quantized linear is
computed as an engine does, inputs rounded and all.

Legend: T tokens measured, H hidden_size, V variants: groups times formats.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.hf.preflight import HfModel
from llmc.builders.network import build_network
from llmc.builders.quantize.calibration import MIXED_STATES, Calibration, ReadWhole, calibrate
from llmc.builders.quantize.decoder import arithmetic, open_decoder
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
from llmc.builders.quantize.state import State
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
    progress: Progress,
) -> Sensitivities:
    """Measure each group of `module_groups` in each of `candidates`; leaving it plain costs none.

    `config` has dtype and architecture. Calibrated tensors stay in the state directory of `what`,
    where the conversion finds them, and so do the variants' hidden states.
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
    state = _open_state(what, config, candidates, data.digest)
    kl = _walk(plain, formats, data, source, state, progress)
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


def _open_state(
    what: Calibration, config: CheckpointConfig, candidates: Sequence[Quantization], digest: str
) -> State:
    """Return where the hidden states of the variants are kept, layer after layer."""
    parts = {
        "key": what.key,
        "arithmetic": arithmetic(),
        "arch": asdict(config.arch),
        "dtype": config.dtype,
        "candidates": [one.to_json() for one in candidates],
        "calibration": [digest, what.samples, what.max_tokens, what.alpha],
        "measured": [NUM_SEQUENCES, SEQUENCE_TOKENS],
    }
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return State.open(what.state_parent / MIXED_STATES / "sensitivity", key)


def _walk(
    plain: CheckpointConfig,
    formats: Sequence[_Format],
    data: CalibrationData,
    source: TensorSource,
    state: State,
    progress: Progress,
) -> npt.NDArray[np.float64]:
    """Return the mean KL [groups, formats] of each variant from the plain model."""
    names = [name for name, _ in module_groups(plain.arch)]
    num_layers, width = plain.arch.num_hidden_layers, plain.arch.hidden_size
    each, lengths = len(names) // num_layers, [len(ids) for ids in data.sequences]
    added = each * len(formats)
    num_variants = added * num_layers
    log.info("sensitivity: %d variants of %d tokens", num_variants, data.num_tokens)
    # What enters and what leaves a layer, of the plain model and every variant.
    needed, free = (
        8 * (1 + num_variants) * data.num_tokens * width,
        disk_usage(state.directory).free,
    )
    if needed > free:
        needed_gib, free_gib = needed / 2**30, free / 2**30
        raise BuildError(f"{state.directory}: {free_gib:.1f} GiB free, expected {needed_gib:.1f}")

    def entering(layer: int, variant: int, rows: slice = slice(0, data.num_tokens)) -> Floats:
        first = variant * data.num_tokens
        return state.read_hidden(layer, first + rows.start, first + rows.stop, width)

    steps = [1 + added * (layer + 1) for layer in range(num_layers)]
    progress.start("sensitivity", sum(steps), unit="passes")
    progress.advance(sum(steps[: state.next_layer]))
    try:
        with closing(open_decoder(plain, source.read, source.read_rows)) as decoder:
            if state.next_layer == 0:
                with state.write_hidden(0) as writer:
                    writer.append(decoder.embed(np.concatenate(data.sequences), lengths))
            for layer in range(state.next_layer, num_layers):
                loaded, hidden = decoder.load(layer), entering(layer, 0)
                with state.write_hidden(layer + 1) as writer:
                    for variant in range(1 + added * layer):
                        writer.append(loaded.run(entering(layer, variant), lengths, {}))
                        progress.advance(1)
                    for name in names[each * layer : each * (layer + 1)]:
                        for form in formats:
                            linears = form.linears(name)
                            changed = loaded.quantized(linears, form.tensors(linears))
                            writer.append(changed.run(hidden, lengths, {}))
                            progress.advance(1)
                state.finish_layer(layer, {})
            last = partial(entering, num_layers)
            kl = _divergences(decoder.head, last, data.num_tokens, num_variants)
            return kl.reshape(len(names), len(formats))
    finally:
        progress.finish()


def _divergences(
    head: Callable[[Floats], Floats],
    read: Callable[[int, slice], Floats],
    num_tokens: int,
    num_variants: int,
) -> npt.NDArray[np.float64]:
    """Return the mean KL(plain || variant) [V] of the next token.

    `read` gives rows of hidden states: 0 is the plain model, then come the variants.
    """
    sums = np.zeros(num_variants)
    for start in range(0, num_tokens, _HEAD_ROWS):
        rows = slice(start, min(start + _HEAD_ROWS, num_tokens))
        wanted = _log_softmax(head(read(0, rows)))
        probability = np.exp(wanted)
        for variant in range(num_variants):
            difference = wanted - _log_softmax(head(read(1 + variant, rows)))
            sums[variant] += np.einsum("tv,tv->", probability, difference)
    # Rounding leaves equal distributions a hair below zero.
    return np.maximum(sums / num_tokens, 0.0)


def _log_softmax(logits: Floats) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide
