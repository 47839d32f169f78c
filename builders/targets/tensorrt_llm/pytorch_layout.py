"""Which tensors a Hugging Face checkpoint for the PyTorch backend has, and what each is made of.

The rules of the model's family, read backwards: nothing here knows a family.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmc.builders.families.family import Family, load_family
from llmc.builders.families.inverse import Piece, by_source, lost_rows, pieces_of
from llmc.builders.targets.tensorrt_llm.pytorch_formats import FOLDED, HF_FORMATS
from llmc.checkpoint import (
    CheckpointConfig,
    Linear,
    Quantization,
    layer_linears,
    layer_norms,
    linear_specs,
    lm_head,
    tensor_specs,
)
from llmc.mapping import Mapping

_EMBEDDINGS = ("vocab_embedding.weight", "position_embedding.weight")
_FUSED_NAMES = {
    "qkv_proj": {"q_proj", "k_proj", "v_proj"},
    "gate_up_proj": {"gate_proj", "up_proj"},
}
"""What the backend makes one module of, and calls so when it asks whether to quantize it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HfModule:
    """One quantized Hugging Face module: rows of `linear`, of its expert `expert` if it has any."""

    name: str
    linear: Linear
    algo: str
    pieces: tuple[Piece, ...]
    expert: int | None
    num_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HfLayout:
    """`plain`: Hugging Face tensor → rows of checkpoint tensors. `modules` are the quantized ones.

    `left_plain` are names of modules that are not. `kv_scales`: tensor for keys or values → the
    checkpoint's. `folded`: norm → the checkpoint's tensors its output is multiplied by.
    """

    plain: dict[str, list[Piece]]
    modules: tuple[HfModule, ...]
    left_plain: tuple[str, ...]
    kv_scales: dict[str, str]
    folded: dict[str, tuple[str, ...]]


def layout_of(config: CheckpointConfig) -> HfLayout:
    """Return what the checkpoint of `config` becomes; `layout_reasons` must have nothing to say."""
    family, arch = load_family(config.arch.architecture), config.arch
    whole = replace(config, mapping=Mapping(), use_parallel_embedding=False)
    linears = _linears(whole)
    quantized = [linear for linear in linears if whole.quantization.quantizes(linear.name)]
    written = {name for one in quantized for name in whole.linear_tensors(one.name).values()}
    kept = [
        spec
        for spec in tensor_specs(whole, 0)
        if spec.name not in written and not spec.name.endswith(".kv_cache_scaling_factor")
    ]
    plain = by_source(family, arch, kept)
    matrices = [spec for spec in kept if spec.is_matrix and not spec.name.endswith(_EMBEDDINGS)]
    # A tied lm_head is no tensor here, and a module there all the same.
    named = {piece.rows.source for spec in matrices for piece in pieces_of(family, arch, spec)}
    return HfLayout(
        plain=plain,
        modules=tuple(module for one in quantized for module in _modules(whole, family, one)),
        left_plain=_left_plain(named),
        kv_scales=dict(_kv_scales(whole, family)),
        folded=_folded(whole, quantized),
    )


def layout_reasons(config: CheckpointConfig) -> Iterator[str]:
    """Yield why a checkpoint cannot be given back as Hugging Face tensors the backend reads."""
    family, arch = load_family(config.arch.architecture), config.arch
    whole = replace(config, mapping=Mapping(), use_parallel_embedding=False)
    plain = replace(whole, quantization=Quantization(), layout=None)
    for source, pieces in by_source(family, arch, tensor_specs(plain, 0)).items():
        lost = lost_rows(source, pieces)
        if lost is not None:
            yield lost
    for linear in _linears(whole):
        algo = whole.quantization.of_module(linear.name).quant_algo
        if algo not in HF_FORMATS:
            continue
        form, pieces = HF_FORMATS[algo], _weight_pieces(whole, family, linear)
        what = f"{linear.name.rpartition('.')[2]}: {algo}"
        if any(_is_stored_otherwise(piece) for piece in pieces):
            yield f"{what}, and {arch.architecture} stores it in another order than [out, in]"
        if linear.experts is not None and not form.experts:
            yield f"{what}; of experts the PyTorch backend reads {_with('experts')}"
        sources = {piece.rows.source.rpartition(".")[0].rpartition(".")[2] for piece in pieces}
        if sources & _FUSED_NAMES.keys() and not form.fused:
            yield f"{what}; of {', '.join(sources)} the PyTorch backend reads {_with('fused')}"
        if linear.layer is None and arch.tie_word_embeddings:
            yield f"{what}, and it is the embedding, which is not quantized"
    yield from _unfoldable(whole)
    yield from _uneven_gates(whole)


def _with(field: str) -> str:
    """Return the formats that have `field`, as text."""
    return ", ".join(name for name, form in HF_FORMATS.items() if getattr(form, field))


def _linears(config: CheckpointConfig) -> list[Linear]:
    layers = range(config.arch.num_hidden_layers)
    found = [linear for layer in layers for linear in layer_linears(config.arch, layer)]
    return [*found, lm_head(config.arch)]


def _weight_pieces(config: CheckpointConfig, family: Family, linear: Linear) -> list[Piece]:
    plain = replace(config, quantization=Quantization(), layout=None)
    return pieces_of(family, config.arch, next(linear_specs(plain, linear)))


def _modules(config: CheckpointConfig, family: Family, linear: Linear) -> Iterator[HfModule]:
    algo = config.quantization.of_module(linear.name).quant_algo
    assert algo is not None, linear.name
    found: dict[str, list[Piece]] = {}
    for piece in _weight_pieces(config, family, linear):
        found.setdefault(piece.rows.source, []).append(piece)
    for source, pieces in found.items():
        expert = None if linear.experts is None else pieces[0].first // linear.num_out
        yield HfModule(
            name=source.removesuffix(".weight"),
            linear=linear,
            algo=algo,
            pieces=tuple(pieces),
            expert=expert,
            num_out=sum(piece.rows.count for piece in pieces),
        )


def _is_stored_otherwise(piece: Piece) -> bool:
    rows = piece.rows
    changed = rows.transposed or rows.plus_one or rows.scales is not None
    return changed or len(rows.shape) != 2


def _left_plain(sources: set[str]) -> tuple[str, ...]:
    """Return the modules of these tensors, experts as one, and what the backend makes of them."""
    modules = set()
    for source in sources:
        module = source.removesuffix(".weight")
        head, found, _ = module.partition(".experts.")
        modules.add(f"{head}.experts" if found else module)
    for fused, parts in _FUSED_NAMES.items():
        parents = [{m.rpartition(".")[0] for m in modules if m.endswith(f".{p}")} for p in parts]
        modules |= {f"{parent}.{fused}" for parent in set.intersection(*parents)}
    return tuple(sorted(modules))


def _kv_scales(config: CheckpointConfig, family: Family) -> Iterator[tuple[str, str]]:
    if config.quantization.kv_cache_quant_algo is None:
        return
    for layer in range(config.arch.num_hidden_layers):
        attention = f"transformer.layers.{layer}.attention"
        first = layer_linears(config.arch, layer)[0]
        source = _weight_pieces(config, family, first)[0].rows.source
        parent = source.removesuffix(".weight").rpartition(".")[0]
        for part in ("k", "v"):
            yield f"{parent}.{part}_proj.{part}_scale", f"{attention}.kv_cache_scaling_factor"


def _is_fused(config: CheckpointConfig, linear: Linear) -> bool:
    """Say whether the backend makes one module of this and others: it reads no scales of inputs."""
    kind = linear.name.rpartition(".")[2]
    return kind == "qkv" or (kind in ("fc", "gate") and config.arch.mlp_type != "plain")


def _norm_of(config: CheckpointConfig, linear: Linear) -> str | None:
    """Return the norm whose output the module reads; None where there is none before it."""
    norms = layer_norms(config.arch)
    is_mlp = ".mlp." in linear.name
    name = norms.before_mlp or norms.before_attention if is_mlp else norms.before_attention
    return None if name is None else f"transformer.layers.{linear.layer}.{name}"


def _unfoldable(config: CheckpointConfig) -> Iterator[str]:
    """Yield why scales of inputs cannot go into norms: there is none, or others read it."""
    for layer in range(config.arch.num_hidden_layers):
        readers: dict[str | None, list[Linear]] = {}
        for linear in layer_linears(config.arch, layer):
            if linear.name.rpartition(".")[2] in ("qkv", "fc", "gate"):
                readers.setdefault(_norm_of(config, linear), []).append(linear)
        for norm, linears in readers.items():
            folded = [one.name.rpartition(".")[2] for one in linears if _is_folded(config, one)]
            is_shared = len({".mlp." in one.name for one in linears}) > 1
            if folded and (norm is None or is_shared or len(folded) < len(linears)):
                yield (
                    f"{folded[0]}: {FOLDED}, whose scales of inputs belong into the norm before it;"
                    f" {'there is none' if norm is None else 'others read that, too'}"
                )


def _is_folded(config: CheckpointConfig, linear: Linear) -> bool:
    algo = config.quantization.of_module(linear.name).quant_algo
    return algo == FOLDED and _is_fused(config, linear)


def _folded(config: CheckpointConfig, quantized: list[Linear]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for linear in quantized:
        if _is_folded(config, linear):
            norm = _norm_of(config, linear)
            assert norm is not None, linear.name
            found.setdefault(norm, []).append(f"{linear.name}.prequant_scaling_factor")
    return {norm: tuple(names) for norm, names in found.items()}


def other_half(name: str) -> str | None:
    """Return what the other half of a gated MLP would be called, None of a module that is none."""
    parent, _, kind = name.rpartition(".")
    other = {"fc": "gate", "gate": "fc"}.get(kind)
    return None if other is None else f"{parent}.{other}"


def _uneven_gates(config: CheckpointConfig) -> Iterator[str]:
    """Yield the layers whose two halves of the MLP are in different formats."""
    for layer in range(config.arch.num_hidden_layers):
        names = {one.name.rpartition(".")[2]: one.name for one in layer_linears(config.arch, layer)}
        if "gate" not in names or "fc" not in names:
            continue
        halves = [config.quantization.of_module(names[kind]).quant_algo for kind in ("fc", "gate")]
        if halves[0] != halves[1]:
            one, other = (algo or "none" for algo in halves)
            yield f"layer {layer}: fc {one}, gate {other}, of which the backend makes one module"
