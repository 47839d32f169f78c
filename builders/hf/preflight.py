"""Everything that can be known to be wrong with a Hugging Face model before a weight is converted.

The config is read to its last key, the files are checked against their headers, and every tensor is
accounted for: present, of the right shape, and used. Values are looked at while converting, except
where two tensors must be equal.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from llmc.arch import ModelArch
from llmc.builders.families import FAMILIES
from llmc.builders.families.family import Family, load_family
from llmc.builders.families.rules import Rows
from llmc.builders.hf.config import HfConfig, read_json
from llmc.builders.hf.prequantized.model import Prequantized, account, read_scheme
from llmc.builders.hf.reader import HfWeights
from llmc.builders.hf.tokenizer_files import tokenizer_reasons
from llmc.checkpoint import CheckpointConfig, TensorSpec, tensor_specs
from llmc.dtypes import WEIGHT_DTYPES
from llmc.errors import CheckpointError

log = logging.getLogger(__name__)

_COMPARE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HfModel:
    """A model that was looked at.

    `specs` are the checkpoint's tensors by name, unsplit, and `sources` the rows each is made of.
    `prequantized`: which of the linear modules are quantized and how; for their weights `sources`
    does not hold.
    """

    config: HfConfig
    arch: ModelArch
    weights: HfWeights
    specs: dict[str, TensorSpec]
    sources: dict[str, tuple[Rows, ...]]
    dtype: str
    prequantized: Prequantized | None = None


def examine(model_dir: Path) -> tuple[HfModel | None, list[str]]:
    """Look at the model in `model_dir`; return it and every reason it cannot be converted.

    The model is None when config.json does not say enough to look further. The caller closes
    `model.weights`.
    """
    weights = HfWeights.open(model_dir)
    config, family, arch, scheme, reasons = None, None, None, None, []
    is_readable = False
    try:
        config = HfConfig.open(model_dir)
        family = find_family(config)
        if family is not None:
            arch = family.arch(config)
            num_reasons = len(config.reasons)
            scheme = read_scheme(model_dir, config, family, arch)
            # Of a quantization nobody could read no tensor can be named.
            is_readable = scheme is not None or len(config.reasons) == num_reasons
    except CheckpointError as error:
        reasons.append(error.message)
    if config is None or family is None or arch is None:
        weights.close()
        return None, (config.reasons if config else []) + reasons + weights.reasons
    config.question_unread()
    dtype = config.dtype or _first_dtype(weights)
    prequantized, misquantized = None, reasons
    if scheme is not None:
        prequantized, misquantized = account(scheme, family, arch, weights)
    whole = CheckpointConfig(arch=arch, dtype=WEIGHT_DTYPES[0])
    specs = {spec.name: spec for spec in tensor_specs(whole, 0)}
    sources, unaccounted = _account(family, arch, specs, weights, prequantized)
    model = HfModel(
        config=config,
        arch=arch,
        weights=weights,
        specs=specs,
        sources=sources,
        dtype=dtype,
        prequantized=prequantized,
    )
    if not is_readable:
        unaccounted = []
    unaccounted += _token_id_reasons(model_dir, config, arch)
    embedding = sources[family.tied[1]][0].source
    unaccounted += tokenizer_reasons(model_dir, embedding=embedding, num_rows=arch.vocab_size)
    return model, [*config.reasons, *weights.reasons, *misquantized, *unaccounted]


def find_family(config: HfConfig) -> Family | None:
    """Return the family of config.json's architecture; of one nobody knows, refuse it there."""
    architecture = config.architecture
    if architecture is None:
        return None
    if architecture in FAMILIES:
        if config.has_remote_code:
            log.info("%s: auto_map: not imported; %s is known here", config.path, architecture)
        return load_family(architecture)
    wanted = f"one of {', '.join(sorted(FAMILIES))}"
    if config.has_remote_code:
        wanted += "; the code it brings along (auto_map) is never imported"
    config.refuse("architectures", architecture, wanted)
    return None


def _account(
    family: Family,
    arch: ModelArch,
    specs: dict[str, TensorSpec],
    weights: HfWeights,
    prequantized: Prequantized | None,
) -> tuple[dict[str, tuple[Rows, ...]], list[str]]:
    """Match the checkpoint's tensors with Hugging Face's; return sources and what does not fit."""
    sources = {name: family.sources(spec, arch, weights.infos) for name, spec in specs.items()}
    reasons: list[str] = []
    output, embedding = family.tied
    if sources[output][0].source not in weights.infos:
        if arch.tie_word_embeddings:
            sources[output] = sources[embedding]
    elif arch.tie_word_embeddings:
        reasons += _tie_reasons(weights, sources[output][0].source, sources[embedding][0].source)
    quantized = {f"{module}.weight" for module in prequantized.modules} if prequantized else ()
    looked_at: set[str] = set()
    for name, rows in sources.items():
        if name in quantized:
            continue
        if name == output and rows == sources[embedding]:
            continue
        for row in rows:
            for source, shape, dtypes in row.tensors:
                if source not in looked_at:
                    reasons += _source_reasons(
                        source, shape, dtypes, weights, untied=name == output
                    )
                looked_at.add(source)
    used = looked_at | (prequantized.used if prequantized else set())
    for name in weights.infos:
        if name not in used and not family.is_harmless(name):
            reasons.append(f"{weights.path(name)}: {name}: not a tensor of {arch.architecture}")
    return sources, reasons


def _source_reasons(
    source: str,
    shape: tuple[int, ...],
    dtypes: tuple[str, ...],
    weights: HfWeights,
    *,
    untied: bool,
) -> Iterator[str]:
    info = weights.infos.get(source)
    if info is None:
        why = " (tie_word_embeddings is not set, so the model needs its own)" if untied else ""
        if not weights.reasons:  # a shard that could not be read may well hold it
            yield f"{weights.directory}: {source}: missing{why}"
    elif info.shape != shape:
        yield f"{weights.path(source)}: {source}: shape {info.shape}, expected {shape}"
    elif info.dtype not in dtypes:
        wanted = ", ".join(dtypes)
        yield f"{weights.path(source)}: {source}: dtype {info.dtype}, expected one of {wanted}"


def _tie_reasons(weights: HfWeights, output: str, embedding: str) -> list[str]:
    """Compare an output tensor that config.json calls tied with the embedding, streaming."""
    ours, other = weights.infos[output], weights.infos.get(embedding)
    if other is None or ours.shape != other.shape or not ours.shape:
        return []  # reported where shapes are checked
    step = max(1, _COMPARE_BYTES // max(1, 4 * prod(ours.shape[1:])))
    for start in range(0, ours.shape[0], step):
        stop = min(start + step, ours.shape[0])
        left = weights.read_rows(output, start, stop).astype(np.float32)
        right = weights.read_rows(embedding, start, stop).astype(np.float32)
        if not np.array_equal(left, right, equal_nan=True):
            return [
                f"{weights.path(output)}: {output}: differs from {embedding},"
                " expected equal because config.json has tie_word_embeddings"
            ]
    return []


def _token_id_reasons(model_dir: Path, config: HfConfig, arch: ModelArch) -> Iterator[str]:
    """Look at generation_config.json, or at config.json where it stands in for that."""
    path = model_dir / "generation_config.json"
    try:
        data = read_json(path) if path.exists() else config.token_ids
    except CheckpointError as error:
        yield error.message
        return
    where = path if path.exists() else config.path
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = data.get(key)
        for token in value if isinstance(value, list) else [value]:
            if token is not None and (type(token) is not int or not 0 <= token < arch.vocab_size):
                yield f"{where}: {key}: {token!r}, expected a token id below {arch.vocab_size}"


def _first_dtype(weights: HfWeights) -> str:
    """Return the first weight's dtype: what a config.json without one was saved in."""
    for info in weights.infos.values():
        if info.dtype in WEIGHT_DTYPES:
            return info.dtype
    return WEIGHT_DTYPES[0]
