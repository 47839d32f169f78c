"""Which tensors a checkpoint holds, and which slice of each belongs to which rank.

Legend: H hidden_size, I intermediate_size, V vocab_size. Linear weights are [out, in].

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/{modeling_utils,model_weights_loader}.py and
layers/linear.py; tested tensor by tensor against what NVIDIA's converter writes. Left out, because
TensorRT-LLM does not need them to load: embed_positions, embed_positions_for_gpt_attention and
rotary_inv_freq, which are functions of config.json.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from llmc.arch import ModelArch
from llmc.checkpoint.config import CheckpointConfig
from llmc.errors import UnsupportedError
from llmc.mapping import Mapping
from llmc.tensors import TensorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of `count` units of `size` rows (or columns) each, split over ranks by whole units.

    With fewer units than ranks, ranks share them: rank r holds unit r * count // tp_size. `padded`:
    the count is rounded up to a multiple of tp_size with zeros.
    """

    count: int
    size: int = 1
    padded: bool = False

    @property
    def length(self) -> int:
        return self.count * self.size

    def span(self, tp_rank: int, tp_size: int) -> tuple[int, int]:
        """Return [start, stop) of the rank's part, within this segment and without padding."""
        if self.count < tp_size and not self.padded:
            unit = tp_rank * self.count // tp_size
            return unit * self.size, (unit + 1) * self.size
        per_rank = -(-self.count // tp_size)
        start, stop = tp_rank * per_rank, (tp_rank + 1) * per_rank
        return min(start, self.count) * self.size, min(stop, self.count) * self.size

    def local_length(self, tp_size: int) -> int:
        """Return the length of every rank's part, padding included."""
        return max(1, -(-self.count // tp_size)) * self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of the whole model and how it is split.

    `name` has the global layer number; `layer` is that number, None outside the layers. `shape` is
    the unsplit, unpadded shape. `axis` is the one that is split (None: every rank holds all of it)
    and `segments` cover it in order, each split by itself.
    """

    name: str
    shape: tuple[int, ...]
    axis: int | None = None
    segments: tuple[Segment, ...] = ()
    layer: int | None = None

    def local_shape(self, tp_size: int) -> tuple[int, ...]:
        """Return the shape every rank of a tensor-parallel group holds."""
        if self.axis is None:
            return self.shape
        length = sum(segment.local_length(tp_size) for segment in self.segments)
        return (*self.shape[: self.axis], length, *self.shape[self.axis + 1 :])

    def local_name(self, first_layer: int) -> str:
        """Return the name in the file of a stage that begins at `first_layer`, there layer 0."""
        if self.layer is None:
            return self.name
        return self.name.replace(f".{self.layer}.", f".{self.layer - first_layer}.", 1)


def tensor_schema(config: CheckpointConfig, rank: int) -> dict[str, TensorInfo]:
    """Return what rank<rank>.safetensors holds, by local name, in file order."""
    tp_size = config.mapping.tp_size
    specs = tensor_specs(config, rank)
    layers = file_mapping(config.mapping, rank).stage_layers(config.arch.num_hidden_layers)
    schema = {}
    for spec in specs:
        name = spec.local_name(layers.start)
        dtype = "float32" if name.endswith("kv_cache_scaling_factor") else config.dtype
        schema[name] = TensorInfo(name=name, dtype=dtype, shape=spec.local_shape(tp_size))
    return schema


def tensor_specs(config: CheckpointConfig, rank: int) -> list[TensorSpec]:
    """Return the specs of the tensors in rank<rank>.safetensors, in file order.

    Raises: UnsupportedError when the mapping cannot split the model (see `unsplittable`).
    """
    arch = config.arch
    reasons = unsplittable(config)
    if reasons:
        raise UnsupportedError("the model cannot be split this way", reasons)
    mapping = file_mapping(config.mapping, rank)
    specs: list[TensorSpec] = []
    if mapping.is_first_stage:
        specs.append(_vocab_embedding(config))
    for layer in mapping.stage_layers(arch.num_hidden_layers):
        specs.extend(_layer_specs(config, layer))
    if mapping.is_last_stage:
        specs.append(TensorSpec(name="transformer.ln_f.weight", shape=(arch.hidden_size,)))
        specs.append(
            TensorSpec(
                name="lm_head.weight",
                shape=(arch.vocab_size, arch.hidden_size),
                axis=0,
                segments=(Segment(count=arch.vocab_size, padded=True),),
            )
        )
    return specs


def file_mapping(mapping: Mapping, rank: int) -> Mapping:
    """Return `mapping` as seen by the first rank that loads rank<rank>.safetensors.

    Context-parallel ranks load the same file, so files count tp and pp only.
    """
    assert 0 <= rank < mapping.tp_size * mapping.pp_size, rank
    pp_rank, tp_rank = divmod(rank, mapping.tp_size)
    return mapping.at(pp_rank * mapping.tp_size * mapping.cp_size + tp_rank)


def valid_tp_sizes(arch: ModelArch) -> list[int]:
    """Return the tp sizes whose heads, KV heads and intermediate columns split evenly."""
    heads = arch.num_attention_heads
    return [size for size in range(1, heads + 1) if not _uneven(arch, size)]


def unsplittable(config: CheckpointConfig) -> list[str]:
    """Return every reason why `config.mapping` cannot split `config.arch`; empty when it can."""
    arch, mapping = config.arch, config.mapping
    reasons = _uneven(arch, mapping.tp_size)
    if reasons:
        valid = ", ".join(map(str, valid_tp_sizes(arch)))
        reasons = [f"{reason}; valid tp_size: {valid}" for reason in reasons]
    if arch.num_hidden_layers % mapping.pp_size:
        layers = arch.num_hidden_layers
        valid = ", ".join(str(size) for size in range(1, layers + 1) if layers % size == 0)
        reasons.append(
            f"pp_size {mapping.pp_size} does not divide num_hidden_layers {layers};"
            f" valid pp_size: {valid}"
        )
    splits_columns = config.use_parallel_embedding and config.embedding_sharding_dim == 1
    if splits_columns and arch.hidden_size % mapping.tp_size:
        reasons.append(
            f"embedding_sharding_dim 1: tp_size {mapping.tp_size} does not divide"
            f" hidden_size {arch.hidden_size}; use embedding_sharding_dim 0"
        )
    return reasons


def _uneven(arch: ModelArch, tp_size: int) -> list[str]:
    reasons = []
    if arch.num_attention_heads % tp_size:
        reasons.append(
            f"tp_size {tp_size} does not divide num_attention_heads {arch.num_attention_heads}"
        )
    kv_heads = arch.num_key_value_heads
    if kv_heads % tp_size and tp_size % kv_heads:
        reasons.append(
            f"tp_size {tp_size} neither divides num_key_value_heads {kv_heads}"
            " nor is a multiple of it"
        )
    inner = arch.intermediate_size
    if inner % tp_size:
        reasons.append(f"tp_size {tp_size} does not divide intermediate_size {inner}")
    return reasons


def _vocab_embedding(config: CheckpointConfig) -> TensorSpec:
    arch = config.arch
    name, shape = "transformer.vocab_embedding.weight", (arch.vocab_size, arch.hidden_size)
    if not config.use_parallel_embedding:
        return TensorSpec(name=name, shape=shape)
    if config.embedding_sharding_dim == 1:
        columns = Segment(count=arch.hidden_size)
        return TensorSpec(name=name, shape=shape, axis=1, segments=(columns,))
    segment = Segment(count=arch.vocab_size, padded=True)
    return TensorSpec(name=name, shape=shape, axis=0, segments=(segment,))


def _layer_specs(config: CheckpointConfig, layer: int) -> Iterator[TensorSpec]:
    arch, prefix = config.arch, f"transformer.layers.{layer}."
    hidden = arch.hidden_size
    query = Segment(count=arch.num_attention_heads, size=arch.head_size)
    key_value = Segment(count=arch.num_key_value_heads, size=arch.head_size)
    inner = Segment(count=arch.intermediate_size)

    def norm(name: str) -> TensorSpec:
        return TensorSpec(name=f"{prefix}{name}.weight", shape=(hidden,), layer=layer)

    def column_parallel(name: str, *segments: Segment, bias: bool) -> Iterator[TensorSpec]:
        length = sum(segment.length for segment in segments)
        for part, shape in (("weight", (length, hidden)), ("bias", (length,))):
            if part == "weight" or bias:
                full = f"{prefix}{name}.{part}"
                yield TensorSpec(name=full, shape=shape, axis=0, segments=segments, layer=layer)

    def row_parallel(name: str, segment: Segment, *, bias: bool) -> Iterator[TensorSpec]:
        full = f"{prefix}{name}"
        shape = (hidden, segment.length)
        yield TensorSpec(
            name=f"{full}.weight", shape=shape, axis=1, segments=(segment,), layer=layer
        )
        if bias:
            yield TensorSpec(name=f"{full}.bias", shape=(hidden,), layer=layer)

    yield norm("input_layernorm")
    yield from column_parallel("attention.qkv", query, key_value, key_value, bias=arch.attn_bias)
    yield from row_parallel("attention.dense", query, bias=arch.attn_bias)
    if config.quantization.kv_cache_quant_algo is not None:
        yield TensorSpec(name=f"{prefix}attention.kv_cache_scaling_factor", shape=(1,), layer=layer)
    yield norm("post_layernorm")
    yield from column_parallel("mlp.fc", inner, bias=arch.mlp_bias)
    yield from column_parallel("mlp.gate", inner, bias=arch.mlp_bias)
    yield from row_parallel("mlp.proj", inner, bias=arch.mlp_bias)
