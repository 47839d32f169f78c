"""Which tensors a checkpoint holds, and which slice of each belongs to which rank.

Linear weights are [out, in] where they are not quantized.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/{modeling_utils,model_weights_loader}.py and
layers/linear.py; tested tensor by tensor against what NVIDIA's converter writes. Left out, because
TensorRT-LLM does not need them to load: embed_positions, embed_positions_for_gpt_attention and
rotary_inv_freq, which are functions of config.json.
"""

from collections.abc import Iterator

from llmc.arch import ModelArch
from llmc.checkpoint.config import CheckpointConfig
from llmc.checkpoint.linears import (
    distinct_linears,
    layer_linears,
    linear_specs,
    lm_head,
    misfits,
)
from llmc.checkpoint.mla import mla_specs
from llmc.checkpoint.mlp import routing_specs
from llmc.checkpoint.norms import layer_norms, norm_specs, qk_norm_specs
from llmc.checkpoint.split import Segment, TensorSpec
from llmc.errors import UnsupportedError
from llmc.mapping import Mapping
from llmc.tensors import TensorInfo


def tensor_schema(config: CheckpointConfig, rank: int) -> dict[str, TensorInfo]:
    """Return what rank<rank>.safetensors holds, by local name, in file order."""
    tp_size = config.mapping.tp_size
    specs = tensor_specs(config, rank)
    layers = file_mapping(config.mapping, rank).stage_layers(config.arch.num_hidden_layers)
    schema = {}
    for spec in specs:
        name = spec.local_name(layers.start)
        dtype = spec.dtype or config.dtype
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
        specs.extend(_embeddings(config))
    for layer in mapping.stage_layers(arch.num_hidden_layers):
        specs.extend(_layer_specs(config, layer))
    if mapping.is_last_stage:
        specs.extend(norm_specs(arch, "transformer.ln_f"))
        specs.extend(linear_specs(config, lm_head(arch)))
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
    reasons += _uneven_experts(arch, mapping)
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
    if not reasons:
        for linear in distinct_linears(config):
            reasons += misfits(config, linear)
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
    if arch.qk_norm == "full" and tp_size > kv_heads:
        reasons.append(
            f"tp_size {tp_size} is more than num_key_value_heads {kv_heads}, whose norm is over all"
        )
    inner = arch.intermediate_size
    has_dense = not all(arch.has_experts(layer) for layer in range(arch.num_hidden_layers))
    if has_dense and inner % tp_size:
        reasons.append(f"tp_size {tp_size} does not divide intermediate_size {inner}")
    shared = 0 if arch.moe is None else arch.moe.shared_expert_intermediate_size
    if shared % tp_size:
        reasons.append(
            f"tp_size {tp_size} does not divide shared_expert_intermediate_size {shared}"
        )
    return reasons


def _uneven_experts(arch: ModelArch, mapping: Mapping) -> list[str]:
    moe_tp, moe_ep = mapping.moe_tp, mapping.moe_ep
    if arch.moe is None:
        return [f"moe_ep_size {moe_ep}, but the model has no experts"] if moe_ep > 1 else []
    count, inner = arch.moe.num_experts, arch.moe.intermediate_size
    reasons = []
    if count % moe_ep:
        reasons.append(f"moe_ep_size {moe_ep} does not divide num_experts {count}")
    if inner % moe_tp:
        hint = " (more moe_ep_size splits experts less)" if moe_ep < mapping.tp_size else ""
        reasons.append(f"moe_tp_size {moe_tp} does not divide the experts' size {inner}{hint}")
    return reasons


def _embeddings(config: CheckpointConfig) -> Iterator[TensorSpec]:
    arch = config.arch
    yield _vocab_embedding(config)
    if arch.position_embedding_type == "learned_absolute":
        shape = (arch.max_position_embeddings, arch.hidden_size)
        yield TensorSpec(name="transformer.position_embedding.weight", shape=shape)
    if arch.embedding_norm:
        yield from norm_specs(arch, "transformer.ln_embed")


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
    arch = config.arch
    prefix = f"transformer.layers.{layer}"
    norms = layer_norms(arch)
    attention: list[TensorSpec] = []
    mlp: list[TensorSpec] = []
    for linear in layer_linears(arch, layer):
        is_attention = linear.name.startswith(f"{prefix}.attention.")
        (attention if is_attention else mlp).extend(linear_specs(config, linear))

    def norm(name: str | None) -> Iterator[TensorSpec]:
        return iter(()) if name is None else norm_specs(arch, f"{prefix}.{name}", layer)

    yield from norm(norms.before_attention)
    yield from mla_specs(arch, f"{prefix}.attention", layer)
    yield from (*attention, *qk_norm_specs(arch, f"{prefix}.attention", layer))
    if arch.attention_sinks:
        heads = Segment(count=arch.num_attention_heads)
        yield TensorSpec(
            name=f"{prefix}.attention.sinks",
            shape=(arch.num_attention_heads,),
            axis=0,
            segments=(heads,),
            layer=layer,
        )
    if config.quantization.kv_cache_quant_algo is not None:
        yield TensorSpec(
            name=f"{prefix}.attention.kv_cache_scaling_factor",
            shape=(1,),
            layer=layer,
            dtype="float32",
        )
    for name in (norms.after_attention, norms.before_mlp):
        yield from norm(name)
    # What belongs to the input of both mlp.fc and mlp.gate is one tensor.
    yield from {spec.name: spec for spec in mlp}.values()
    yield from routing_specs(arch, layer)
    yield from norm(norms.after_mlp)
