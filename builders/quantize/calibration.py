"""What a quantization needs beside the model, and doing the part of it that needs calibration."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from llmc.builders.hf.preflight import HfModel
from llmc.builders.quantize.decoder import arithmetic
from llmc.builders.quantize.memory import peak_bytes
from llmc.builders.quantize.site import Settings, load_algorithm
from llmc.builders.quantize.source import TensorSource
from llmc.builders.quantize.state import STATE_PREFIX, State
from llmc.builders.quantize.texts import CalibrationData, load_calibration
from llmc.checkpoint import MIXED_PRECISION, CheckpointConfig, Quantization, layer_linears
from llmc.log import Progress
from llmc.plugins.native import available_cores
from llmc.quant.format import Choice, load_format

log = logging.getLogger(__name__)

MIXED_STATES = f"{STATE_PREFIX}mixed"
"""Folder of states that are kept together, one in a folder of its own each."""

ReadWhole = Callable[[], npt.NDArray[Any]]
"""Reads one finished tensor, unsplit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Where calibration text comes from and where progress is kept.

    `data` None: the text that comes with llmc. At most `samples` sequences of at most `max_tokens`
    tokens. `alpha` is SmoothQuant's, None: what each input likes best. A calibration that was
    stopped goes on when `state_parent` and `key` are the same; `key` stands for the model's files
    and the tool. The state stays until `state.remove_states`.
    """

    state_parent: Path
    key: str
    data: Path | None = None
    samples: int = 256
    max_tokens: int = 512
    alpha: float | None = None


def needs_calibration(config: CheckpointConfig) -> bool:
    """Say whether this quantization looks at activations."""
    quantization = config.quantization
    if quantization.kv_cache_quant_algo is not None:
        return True
    modules = quantization.quantized_layers.values()
    algos = [one.quant_algo for one in modules or (quantization,)]
    return any(load_format(algo).needs_calibration for algo in algos if algo is not None)


def calibration_reasons(config: CheckpointConfig, model_dir: Path) -> list[str]:
    """Return why calibration cannot be done here; none when it is not needed."""
    if not needs_calibration(config):
        return []
    if (model_dir / "tokenizer.json").is_file():
        return []
    return [f"{model_dir}: no tokenizer.json, which calibration needs to read text"]


def settings_of(
    quantization: Quantization, dtype: str, alpha: float | None = None
) -> Settings | None:
    """Return what the algorithm is told, None when weights stay as they are."""
    if quantization.quant_algo is None:
        return None
    return Settings(
        algo=quantization.quant_algo,
        dtype=dtype,
        group_size=quantization.group_size,
        alpha=alpha,
        clamp=quantization.clamp_val or Choice().clamp,
    )


def calibrate(
    model: HfModel, model_dir: Path, config: CheckpointConfig, what: Calibration, progress: Progress
) -> Mapping[str, ReadWhole]:
    """Quantize what needs calibration; return, by global tensor name, how to read each result.

    Results are unsplit and do not depend on the mapping. They live in the state directory, where an
    interrupted calibration goes on. With MIXED_PRECISION each format is calibrated for all modules,
    as if it were the only one, and then taken where it is wanted.
    """
    if config.quantization.quant_algo != MIXED_PRECISION:
        return _calibrate_alike(model, model_dir, config, what, progress)
    quantizations = {str(one.quant_algo): one for one in _module_quantizations(config).values()}
    wanted = {"kv": Quantization(kv_cache_quant_algo=config.quantization.kv_cache_quant_algo)}
    finished: dict[str, ReadWhole] = {}
    for name, quantization in sorted((wanted | quantizations).items()):
        alike = replace(config, quantization=quantization)
        if not needs_calibration(alike):
            continue
        # Each has a place of its own: a place keeps the state of one calibration.
        place = what.state_parent / MIXED_STATES / name
        found = _calibrate_alike(
            model, model_dir, alike, replace(what, state_parent=place), progress
        )
        names = set(found)
        if name != "kv":
            modules = [
                module
                for module, one in _module_quantizations(config).items()
                if one.quant_algo == name
            ]
            names = {tensor for one in modules for tensor in config.linear_tensors(one).values()}
        finished |= {tensor: read for tensor, read in found.items() if tensor in names}
    return finished


def _module_quantizations(config: CheckpointConfig) -> dict[str, Quantization]:
    """Return the quantization of each linear module of the layers that has one."""
    layers = range(config.arch.num_hidden_layers)
    names = [linear.name for layer in layers for linear in layer_linears(config.arch, layer)]
    return {
        name: config.quantization.of_module(name)
        for name in names
        if config.quantization.quantizes(name)
    }


def _calibrate_alike(
    model: HfModel, model_dir: Path, config: CheckpointConfig, what: Calibration, progress: Progress
) -> Mapping[str, ReadWhole]:
    """Calibrate modules that are all quantized alike."""
    from llmc.builders.quantize.walk import Walk  # only where something is calibrated

    data = load_calibration(
        what.data,
        model_dir,
        samples=what.samples,
        max_tokens=what.max_tokens,
        vocab_size=config.arch.vocab_size,
    )
    settings = settings_of(config.quantization, config.dtype, what.alpha)
    algorithm = None
    if settings is not None and load_format(settings.algo).needs_calibration:
        algorithm = load_algorithm(settings.algo)
    longest = max(len(sequence) for sequence in data.sequences)
    threads = available_cores()
    peak = peak_bytes(
        config, algorithm, num_tokens=data.num_tokens, longest=longest, threads=threads
    )
    log.info(
        "calibration takes about %.1f GiB of memory and %.1f GiB of disk for hidden states",
        *(peak.memory / 2**30, peak.disk / 2**30),
    )
    state = State.open(what.state_parent, _key(config, what, data))
    source = TensorSource(model, config.dtype)
    Walk(
        config=config,
        algorithm=algorithm,
        settings=settings or Settings(algo="none", dtype=config.dtype),
        data=data,
        read=source.read,
        read_rows=source.read_rows,
        state=state,
        progress=progress,
        threads=threads,
    ).run()
    finished: dict[str, ReadWhole] = {}
    for layer in range(config.arch.num_hidden_layers):
        file = state.layer_file(layer)
        finished |= {name: partial(file.read, name) for name in file.infos}
    return finished


def _key(config: CheckpointConfig, what: Calibration, data: CalibrationData) -> str:
    """Return a digest of everything the calibrated tensors depend on."""
    settings = settings_of(config.quantization, config.dtype, what.alpha)
    parts = {
        "key": what.key,
        "arithmetic": arithmetic(),
        "arch": asdict(config.arch),
        "quantization": config.quantization.to_json(),
        "settings": None if settings is None else asdict(settings),
        "data": [data.digest, what.samples, what.max_tokens],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
