"""Matching a scheme with the tensors of one model, and reading them.

Every tensor a quantized module must have is there, of the right dtype and shape, before anything is
converted; what is left over is reported where all tensors are accounted for.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.arch import ModelArch
from llmc.builders.families.family import Family
from llmc.builders.hf.config import HfConfig, read_json
from llmc.builders.hf.prequantized import SCHEMES
from llmc.builders.hf.prequantized.assembly import Assembly, assembly_of
from llmc.builders.hf.prequantized.scheme import (
    FLOATS,
    SCALAR,
    Scheme,
    Source,
    Stored,
    Tensors,
)
from llmc.builders.hf.reader import HfWeights
from llmc.checkpoint import (
    CheckpointConfig,
    Quantization,
    layer_linears,
    lm_head,
)
from llmc.lookup import load
from llmc.quant.format import Choice, load_format, tensor_name

log = logging.getLogger(__name__)

_SETTINGS = "quantization_config"
_MXFP4 = "mxfp4"
_MODELOPT = "hf_quant_config.json"
_KEPT_MODULES = 4
"""Converted modules kept until all their tensors are written: one per thread or so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prequantized:
    """What is quantized in a model.

    `modules`: linear module of the checkpoint → what it is made of. `scales`:
    attention module → tensors with the scales of its FP8 KV cache. `used` are all Hugging Face
    tensors that belong to these.
    """

    scheme: Scheme
    quantization: Quantization
    modules: dict[str, Assembly]
    scales: dict[str, tuple[str, ...]]
    used: frozenset[str]


def read_scheme(
    model_dir: Path, config: HfConfig, family: Family, arch: ModelArch
) -> Scheme | None:
    """Return how the model is quantized, None when it is not or, with reasons, cannot be read.

    None too where the family's own rules read what is quantized, and it becomes plain.
    """
    settings = config.object(_SETTINGS)
    path = model_dir / _MODELOPT
    if path.is_file():
        other = HfConfig(path, read_json(path))
        other.reasons = config.reasons
        settings, method = other.object("quantization"), "modelopt"
        if settings is None:
            other.refuse("quantization", None, "an object")
            return None
    elif settings is None:
        return None
    else:
        # GPTQModel 7 writes `method`.
        method = settings.maybe(str, "quant_method") or settings.optional(str, "method", "")
        if not method and settings.has("quant_algo"):
            method = "modelopt"
    if method == _MXFP4 and family.reads_mxfp4:
        log.info("%s: MXFP4, which becomes plain weights of the same values", config.path)
        settings.raw("modules_to_not_convert")  # which tensors there are says the same
        settings.question_unread()
        return None
    if method not in SCHEMES:
        settings.refuse("quant_method", method, f"one of {', '.join(SCHEMES)}")
        return None
    module = load(SCHEMES, method, package="llmc.builders.hf.prequantized", kind="quant_method")
    scheme: Scheme | None = module.read(settings, arch)
    return scheme


def account(
    scheme: Scheme, family: Family, arch: ModelArch, weights: HfWeights
) -> tuple[Prequantized, list[str]]:
    """Match the model's tensors with the scheme; return them and what is wrong with them."""
    reasons: list[str] = []
    modules: dict[str, Assembly] = {}
    scales: dict[str, tuple[str, ...]] = {}
    plain: list[str] = []
    used: set[str] = set()
    linears = [
        item for layer in range(arch.num_hidden_layers) for item in layer_linears(arch, layer)
    ]
    for linear in linears:
        assembly = assembly_of(family, arch, linear)
        if assembly is None:
            reasons.append(
                f"{linear.name}: the model does not store it as [out, in], and quantized weights"
                f" are not read otherwise: quantize {arch.architecture} here, from plain weights"
            )
            continue
        names = assembly.modules
        kinds = {scheme.is_plain(name) for name in names}
        if kinds == {True}:
            plain.append(linear.name)
        elif len(kinds) > 1:
            quantized = [name for name in names if not scheme.is_plain(name)]
            reasons.append(
                f"{', '.join(names)}: only {', '.join(quantized)} quantized, expected all or none:"
                " they become one module"
            )
        else:
            modules[linear.name] = assembly
            for name, rows in zip(names, assembly.rows, strict=True):
                wanted = scheme.stored(rows, linear.num_in)
                wrong = [*_tensor_reasons(name, wanted, weights, used)]
                reasons += wrong or _look_reasons(name, scheme, weights)
                if scheme.tolerates_zero_bias and not linear.bias:
                    reasons += _bias_reasons(name, weights, used)
        if scheme.kv_scales and linear.name.endswith(".qkv"):
            parent = names[0].rpartition(".")[0]
            found = tuple(f"{parent}.{suffix}" for suffix in scheme.kv_scales)
            scales[linear.name.removesuffix(".qkv")] = found
            for name in found:
                module, _, suffix = name.rpartition(".")
                one = {suffix: Stored(dtypes=FLOATS, shapes=SCALAR)}
                reasons += _tensor_reasons(module, one, weights, used)
    if not modules:
        reasons.append(
            f"{weights.directory}: a quantization that is for none of the linear modules"
        )
    made_of = assembly_of(family, arch, lm_head(arch))
    head = "lm_head" if made_of is None else made_of.modules[0]
    if not scheme.is_plain(head) and not arch.tie_word_embeddings:
        reasons.append(f"{head}: quantized, expected plain: TensorRT-LLM's {scheme.algo} leaves it")
    prequantized = Prequantized(
        scheme=scheme,
        quantization=_quantization(scheme, plain),
        modules=modules,
        scales=scales,
        used=frozenset(used),
    )
    return prequantized, reasons


def _quantization(scheme: Scheme, plain: list[str]) -> Quantization:
    made = Quantization.of(
        scheme.algo,
        "FP8" if scheme.kv_scales else None,
        group_size=scheme.group_size,
        exclude_modules=("lm_head", *plain) if plain else None,
    )
    return made if scheme.clamp is None else replace(made, clamp_val=scheme.clamp)


def _tensor_reasons(
    module: str, wanted: dict[str, Stored], weights: HfWeights, used: set[str]
) -> Iterator[str]:
    """Look at the tensors of one module and add what it has to `used`."""
    for suffix, stored in wanted.items():
        name = f"{module}.{suffix}"
        info = weights.infos.get(name)
        if info is None:
            if not stored.optional and not weights.reasons:
                yield f"{weights.directory}: {name}: missing, which a quantized module needs"
            continue
        used.add(name)
        where = f"{weights.path(name)}: {name}"
        if info.dtype not in stored.dtypes:
            yield f"{where}: dtype {info.dtype}, expected one of {', '.join(stored.dtypes)}"
        elif info.shape not in stored.shapes:
            shapes = " or ".join(str(shape) for shape in stored.shapes)
            yield f"{where}: shape {info.shape}, expected {shapes}"


def _look_reasons(module: str, scheme: Scheme, weights: HfWeights) -> list[str]:
    suffixes = [suffix for suffix in scheme.looked_at if f"{module}.{suffix}" in weights.infos]
    reason = scheme.look(_read(module, suffixes, weights)) if suffixes else None
    return [] if reason is None else [reason]


def _bias_reasons(module: str, weights: HfWeights, used: set[str]) -> Iterator[str]:
    name = f"{module}.bias"
    if name in weights.infos:
        used.add(name)
        if np.any(weights.read(name)):
            yield f"{weights.path(name)}: {name}: not zero, expected no bias in this model"


def _read(module: str, suffixes: list[str], weights: HfWeights) -> Source:
    names = {suffix: f"{module}.{suffix}" for suffix in suffixes}
    path = weights.path(next(iter(names.values())))
    tensors = {suffix: weights.read(name) for suffix, name in names.items()}
    return Source(name=f"{path}: {module}", tensors=tensors)


def adopt(
    config: CheckpointConfig, prequantized: Prequantized | None
) -> tuple[CheckpointConfig, list[str]]:
    """Return `config` with the model's own quantization, and why it cannot be another."""
    if prequantized is None:
        return config, []
    wanted, found = config.quantization, prequantized.quantization
    reasons = []
    if wanted.quant_algo not in (None, found.quant_algo):
        reasons.append(
            f"quant_algo {wanted.quant_algo}: the model is quantized already and becomes"
            f" {found.quant_algo}; leave it out"
        )
    if wanted.kv_cache_quant_algo not in (None, found.kv_cache_quant_algo):
        reasons.append(
            f"kv_cache_quant_algo {wanted.kv_cache_quant_algo}: the model is quantized already,"
            " its KV cache is not; leave it out"
        )
    return replace(config, quantization=found), reasons


def finished(
    prequantized: Prequantized, weights: HfWeights, config: CheckpointConfig
) -> dict[str, Callable[[], npt.NDArray[Any]]]:
    """Return how to read each tensor of the quantized modules, unsplit, by its global name.

    Reading takes the memory of the module, a few of which are kept.
    Raises (when read): CheckpointError for values the format does not hold.
    """
    quantization, form = config.quantization, load_format(prequantized.scheme.algo)

    def read_source(name: str) -> Source:
        stored = prequantized.scheme.stored(0, 0)
        found = [suffix for suffix in stored if f"{name}.{suffix}" in prequantized.used]
        return _read(name, found, weights)

    @lru_cache(maxsize=_KEPT_MODULES)
    def convert(module: str) -> Tensors:
        choice = Choice(
            module=module.rpartition(".")[2],
            dtype=config.dtype,
            group_size=quantization.group_size,
            clamp=quantization.clamp_val or Choice().clamp,
            input_amax=1.0,
        )
        return prequantized.modules[module].tensors(prequantized.scheme, choice, read_source)

    def read(module: str, role: str) -> npt.NDArray[Any]:
        return convert(module)[role]

    def read_kv_scale(names: tuple[str, ...]) -> npt.NDArray[Any]:
        # TensorRT-LLM has one for keys and values: 1.x takes the larger too.
        sources = [
            _read(name.rpartition(".")[0], [name.rpartition(".")[2]], weights) for name in names
        ]
        scales = [source.scalar(suffix) for source in sources for suffix in source.tensors]
        return np.array([max(scales)], np.float32)

    tensors: dict[str, Callable[[], npt.NDArray[Any]]] = {}
    for module in prequantized.modules:
        for tensor in form.tensors_of(module):
            # What fc and gate share is named once; which of them reads it does not matter.
            tensors[tensor_name(tensor, module)] = partial(read, module, tensor.role)
    for attention, names in prequantized.scales.items():
        tensors[f"{attention}.kv_cache_scaling_factor"] = partial(read_kv_scale, names)
    return tensors
