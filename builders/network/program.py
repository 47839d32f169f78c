"""The order of a decoder's blocks, and what a pipeline stage receives and hands on.

A rank of a later stage starts with `recv` and, when there is more than one stage, the last stage
hands the logits back to rank 0, which samples.
"""

from collections.abc import Iterator

from llmc.builders.families.family import unhandled_settings
from llmc.builders.network.attention import ROPE_STYLES, attention
from llmc.builders.network.experts import experts
from llmc.builders.network.latent import latent_attention
from llmc.builders.network.mlp import mlp
from llmc.builders.network.writer import Writer
from llmc.checkpoint import CheckpointConfig, layer_norms, unsplittable
from llmc.dtypes import numpy_dtype
from llmc.errors import UnsupportedError
from llmc.plugins import graph
from llmc.plugins.activation.spec import ACTIVATIONS
from llmc.plugins.graph import Attr, Network
from llmc.plugins.rope import rope_unsupported

_LOGITS = "logits"
"""The value every rank that has the logits calls so."""


def build_network(config: CheckpointConfig, rank: int) -> Network:
    """Write the program of `rank`.

    Raises: UnsupportedError with the reasons of `unsupported`.
    """
    reasons = unsupported(config)
    if reasons:
        raise UnsupportedError("no network can be written for this checkpoint", reasons)
    writer = Writer(config=config, mapping=config.mapping.at(rank))
    outputs = _write(writer)
    inputs = ("token_ids",) if writer.mapping.is_first_stage else ()
    network = Network(ops=tuple(writer.ops), inputs=inputs, outputs=outputs)
    graph.check(network)
    return network


def unsupported(config: CheckpointConfig) -> list[str]:
    """Return every reason why no network can be written."""
    arch = config.arch
    reasons = unsplittable(config)
    if config.mapping.cp_size > 1:
        reasons.append(f"mapping.cp_size: {config.mapping.cp_size}, expected 1")
    for found, what, known in (
        (arch.activation, "hidden_act", ACTIVATIONS),
        (arch.position_embedding_type, "position_embedding_type", ROPE_STYLES),
    ):
        if found not in known:
            reasons.append(f"{what}: {found!r}, expected one of {', '.join(known)}")
    if ROPE_STYLES.get(arch.position_embedding_type, "none") != "none":
        reasons += rope_unsupported(
            rotary_dim=arch.rotary_embedding_dim, rotary_scaling=arch.rotary_scaling
        )
    reasons += unhandled_settings(arch)
    for layer in range(arch.num_hidden_layers):
        experts_here = arch.has_experts(layer)
        if experts_here or arch.mlp_type == "gated":
            reasons += _unlike(config, f"transformer.layers.{layer}.mlp", experts_here)
    return reasons


def _unlike(config: CheckpointConfig, mlp: str, has_experts: bool) -> Iterator[str]:
    """Say which modules of one op are quantized differently."""
    names, why = ("fc", "gate"), "they are one linear"
    if has_experts:
        names, why = ("fc", "proj"), "experts are one op"
    one, other = (config.quantization.of_module(f"{mlp}.{name}") for name in names)
    if (one.quant_algo, one.group_size) != (other.quant_algo, other.group_size):
        yield (
            f"quantization: {mlp}.{names[0]} is {one.quant_algo or 'plain'}, {mlp}.{names[1]}"
            f" {other.quant_algo or 'plain'}, expected the same ({why})"
        )


def _write(writer: Writer) -> tuple[str, ...]:
    """Write everything; return the outputs of the rank."""
    mapping, arch = writer.mapping, writer.arch
    if mapping.is_first_stage:
        hidden = _embedding(writer, "token_ids")
    else:
        peer = mapping.rank - mapping.tp_size
        hidden = writer.receive("stage_input", "T", arch.hidden_size, peer)
    for local in range(len(mapping.stage_layers(arch.num_hidden_layers))):
        hidden = _layer(writer, local, hidden)
    outputs: tuple[str, ...] = ()
    if not mapping.is_last_stage:
        peer = mapping.rank + mapping.tp_size
        writer.send("stage_output", hidden, "T", arch.hidden_size, peer)
    elif mapping.pp_size == 1:
        outputs = (_logits(writer, hidden),)
    else:
        logits = _logits(writer, hidden)
        if mapping.tp_rank == 0:
            writer.send("logits_out", logits, "L", arch.vocab_size, 0)
    if mapping.pp_size > 1 and mapping.rank == 0:
        last_stage = (mapping.pp_size - 1) * mapping.tp_size
        outputs = (writer.receive(_LOGITS, "L", arch.vocab_size, last_stage, _LOGITS),)
    return outputs


def _embedding(writer: Writer, token_ids: str) -> str:
    config, arch, tp = writer.config, writer.arch, writer.mapping.tp_size
    name, start = "transformer.vocab_embedding", 0
    rows, columns = arch.vocab_size, arch.hidden_size
    sharded = config.use_parallel_embedding and tp > 1
    by_rows = sharded and config.embedding_sharding_dim == 0
    if by_rows:
        rows = config.padded_vocab_size // tp
        start = writer.mapping.tp_rank * rows
    elif sharded:
        columns //= tp
    attrs: dict[str, Attr] = {
        "vocab_start": start,
        "num_embeddings": rows,
        "hidden_size": columns,
        # A factor of the model's own type, as its embedding is.
        "scale": float(numpy_dtype(config.dtype).type(arch.embedding_scale)),
    }
    hidden = writer.call("embedding", name, (token_ids,), attrs, {"weight": (f"{name}.weight",)})
    if by_rows:
        hidden = writer.allreduce(f"{name}.allreduce", hidden, columns)
    elif sharded:
        hidden = writer.allgather(f"{name}.allgather", hidden, "T", columns, arch.hidden_size)
    if arch.position_embedding_type == "learned_absolute":
        name = "transformer.position_embedding"
        attrs = {"hidden_size": arch.hidden_size, "num_positions": arch.max_position_embeddings}
        hidden = writer.call(
            "position_embedding", name, (hidden,), attrs, {"weight": (f"{name}.weight",)}
        )
    return writer.norm("transformer.ln_embed" if arch.embedding_norm else None, hidden)


def _layer(writer: Writer, local: int, hidden: str) -> str:
    """One decoder layer; `local` counts inside the stage, as the checkpoint's names do."""
    arch, prefix = writer.arch, f"transformer.layers.{local}"
    names = layer_norms(arch)

    def norm(name: str | None, value: str) -> str:
        return writer.norm(name and f"{prefix}.{name}", value)

    def add(block: str, value: str) -> str:
        return writer.add(f"{prefix}.{block}.residual", hidden, value, arch.residual_scale)

    read = norm(names.before_attention, hidden)
    attend = attention if arch.mla is None else latent_attention
    attended = norm(names.after_attention, attend(writer, local, read))
    if arch.parallel_attention:
        # Both read the layer's input; a second norm is of that too.
        read = norm(names.before_mlp, hidden) if names.before_mlp else read
    hidden = add("attention", attended)
    if not arch.parallel_attention:
        read = norm(names.before_mlp, hidden)
    block = experts if arch.has_experts(writer.global_layer(local)) else mlp
    hidden = add("mlp", norm(names.after_mlp, block(writer, local, read)))
    return hidden


def _logits(writer: Writer, hidden: str) -> str:
    arch, tp = writer.arch, writer.mapping.tp_size
    attrs: dict[str, Attr] = {"hidden_size": arch.hidden_size}
    last = writer.call("gather_last", "gather_last", (hidden,), attrs)
    normed = writer.norm("transformer.ln_f", last)
    local = writer.config.padded_vocab_size // tp
    transforms = arch.logits_scale != 1.0 or arch.final_logit_softcapping is not None
    logits = writer.linear(
        ("lm_head",),
        normed,
        in_features=arch.hidden_size,
        out_features=local,
        bias=arch.lm_head_bias,
        output=None if transforms or tp > 1 else _LOGITS,
    )
    if tp > 1:
        name = "lm_head.allgather"
        whole = None if transforms else _LOGITS
        logits = writer.allgather(name, logits, "L", local, arch.vocab_size, whole)
    if transforms:
        attrs = {
            "columns": arch.vocab_size,
            "scale": arch.logits_scale,
            "softcap": arch.final_logit_softcapping,
        }
        logits = writer.call(
            "logits_transform", "logits_transform", (logits,), attrs, output=_LOGITS
        )
    return logits
