"""The decoder as a program of fused ops, per rank, read from a checkpoint's config alone.

Owns the order of ops and where the collectives stand; targets walk the result. Tensor names are
TensorRT-LLM's. A rank of a later pipeline stage starts with `recv` and, when there is more than one
stage, the last stage hands the logits back to rank 0, which samples.
"""

from dataclasses import dataclass, field

from llmc.builders.families.family import unhandled_settings
from llmc.checkpoint import CheckpointConfig, unsplittable
from llmc.errors import UnsupportedError
from llmc.mapping import Mapping
from llmc.plugins import graph
from llmc.plugins.graph import Attr, Network, OpCall
from llmc.quant.format import tensor_name


def build_network(config: CheckpointConfig, rank: int) -> Network:
    """Write the program of `rank`.

    Raises: UnsupportedError with the reasons of `unsupported`.
    """
    reasons = unsupported(config)
    if reasons:
        raise UnsupportedError("no network can be written for this checkpoint", reasons)
    return _Writer(config=config, mapping=config.mapping.at(rank)).write()


def unsupported(config: CheckpointConfig) -> list[str]:
    """Return every reason why no network can be written; plugins.rope judges the positions."""
    arch = config.arch
    reasons = unsplittable(config)
    if config.mapping.cp_size > 1:
        reasons.append(f"mapping.cp_size: {config.mapping.cp_size}, expected 1")
    if arch.activation != "silu":
        reasons.append(f"hidden_act: {arch.hidden_act!r}, expected 'silu'")
    if arch.position_embedding_type != "rope_gpt_neox":
        found = arch.position_embedding_type
        reasons.append(f"position_embedding_type: {found!r}, expected 'rope_gpt_neox'")
    reasons += unhandled_settings(arch)
    for layer in range(arch.num_hidden_layers):
        prefix = f"transformer.layers.{layer}.mlp"
        fc, gate = (config.quantization.of_module(f"{prefix}.{name}") for name in ("fc", "gate"))
        if (fc.quant_algo, fc.group_size) != (gate.quant_algo, gate.group_size):
            reasons.append(
                f"quantization: {prefix}.fc is {fc.quant_algo or 'plain'}, {prefix}.gate"
                f" {gate.quant_algo or 'plain'},"
                " expected the same (they are one linear)"
            )
    return reasons


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Appends ops; every method that returns a string returns the name of the value it wrote."""

    config: CheckpointConfig
    mapping: Mapping
    ops: list[OpCall] = field(default_factory=list)

    def write(self) -> Network:
        mapping, arch = self.mapping, self.config.arch
        first = mapping.is_first_stage
        if first:
            hidden = self.embedding("token_ids")
        else:
            hidden = self.receive("stage_input", "T", arch.hidden_size, self._peer(-1))
        for local in range(len(mapping.stage_layers(arch.num_hidden_layers))):
            hidden = self.layer(local, hidden)
        outputs: tuple[str, ...] = ()
        if not mapping.is_last_stage:
            self.send("stage_output", hidden, "T", arch.hidden_size, self._peer(1))
        else:
            logits = self.logits(hidden)
            if mapping.pp_size == 1:
                outputs = (logits,)
            elif mapping.tp_rank == 0:
                self.send("logits_out", logits, "L", arch.vocab_size, 0)
        if mapping.pp_size > 1 and mapping.rank == 0:
            last_stage = (mapping.pp_size - 1) * mapping.tp_size
            outputs = (self.receive("logits", "L", arch.vocab_size, last_stage),)
        network = Network(
            ops=tuple(self.ops), inputs=("token_ids",) if first else (), outputs=outputs
        )
        graph.check(network)
        return network

    def embedding(self, token_ids: str) -> str:
        config, tp = self.config, self.mapping.tp_size
        name, rows, columns, start = "transformer.vocab_embedding", config.arch.vocab_size, 0, 0
        columns = config.arch.hidden_size
        sharded = config.use_parallel_embedding and tp > 1
        by_rows = sharded and config.embedding_sharding_dim == 0
        if by_rows:
            rows = config.padded_vocab_size // tp
            start = self.mapping.tp_rank * rows
        elif sharded:
            columns //= tp
        attrs: dict[str, Attr] = {
            "vocab_start": start,
            "num_embeddings": rows,
            "hidden_size": columns,
            "scale": 1.0,
        }
        local = self._call("embedding", name, (token_ids,), attrs, weight=(f"{name}.weight",))
        if by_rows:
            return self.allreduce(f"{name}.allreduce", local)
        if sharded:
            return self.allgather(f"{name}.allgather", local, "T", columns, config.arch.hidden_size)
        return local

    def layer(self, local: int, hidden: str) -> str:
        """One decoder layer; `local` counts inside the stage, as the checkpoint's names do."""
        prefix, arch = f"transformer.layers.{local}", self.config.arch
        tp = self.mapping.tp_size
        heads, kv_heads = arch.num_attention_heads // tp, max(1, arch.num_key_value_heads // tp)
        inner, mlp = heads * arch.head_size, arch.intermediate_size // tp
        module = f"{prefix}.attention"
        qkv = self.linear(
            (f"{module}.qkv",),
            self.norm(f"{prefix}.input_layernorm", hidden),
            in_features=arch.hidden_size,
            out_features=(heads + 2 * kv_heads) * arch.head_size,
            bias=arch.attn_bias,
        )
        attrs: dict[str, Attr] = {
            "layer": local,
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_size": arch.head_size,
            "rope_style": "neox",
            "rotary_dim": arch.rotary_embedding_dim,
            "rotary_base": float(arch.rotary_base),
            "rotary_scaling": arch.rotary_scaling,
            "max_position_embeddings": arch.max_position_embeddings,
            "sliding_window": arch.sliding_window,
            "alibi": None,
            "softcap": None,
            "kv_quant": self.config.quantization.kv_cache_quant_algo or "none",
            "scale": arch.head_size**-0.5,
        }
        scales = {}
        if self.config.quantization.kv_cache_quant_algo is not None:
            scales["kv_cache_scaling_factor"] = (f"{module}.kv_cache_scaling_factor",)
        context = self._call("attention", module, (qkv,), attrs, **scales)
        hidden = self.add(
            f"{module}.residual",
            hidden,
            self.row_linear(f"{module}.dense", context, inner, arch.dense_bias),
        )
        module = f"{prefix}.mlp"
        gate_up = self.linear(
            (f"{module}.fc", f"{module}.gate"),
            self.norm(f"{prefix}.post_layernorm", hidden),
            in_features=arch.hidden_size,
            out_features=2 * mlp,
            bias=arch.mlp_bias,
        )
        attrs = {
            "intermediate_size": mlp,
            "activation": arch.activation,
            "activated_half": 0,
        }
        activated = self._call("gated_activation", f"{module}.activation", (gate_up,), attrs)
        product = self.row_linear(f"{module}.proj", activated, mlp, arch.mlp_bias)
        return self.add(f"{module}.residual", hidden, product)

    def logits(self, hidden: str) -> str:
        arch = self.config.arch
        attrs: dict[str, Attr] = {"hidden_size": arch.hidden_size}
        last = self._call("gather_last", "gather_last", (hidden,), attrs)
        normed = self.norm("transformer.ln_f", last)
        local = self.config.padded_vocab_size // self.mapping.tp_size
        logits = self.linear(
            ("lm_head",), normed, in_features=arch.hidden_size, out_features=local, bias=False
        )
        if self.mapping.tp_size == 1:
            return logits
        return self.allgather("lm_head.allgather", logits, "L", local, arch.vocab_size)

    def norm(self, name: str, value: str) -> str:
        arch = self.config.arch
        attrs: dict[str, Attr] = {
            "hidden_size": arch.hidden_size,
            "epsilon": float(arch.norm_epsilon),
        }
        return self._call("rms_norm", name, (value,), attrs, weight=(f"{name}.weight",))

    def linear(
        self,
        modules: tuple[str, ...],
        value: str,
        *,
        in_features: int,
        out_features: int,
        bias: bool,
    ) -> str:
        """One product over the weights of `modules`, whose outputs stand side by side."""
        config, whole = self.config, self._global_name(modules[0])
        quantization = config.quantization.of_module(whole)
        form = config.stored_format(whole)
        attrs: dict[str, Attr] = {
            "in_features": in_features,
            "out_features": out_features,
            "quant": quantization.quant_algo or "none",
            "stored_quantized": form is not None,
            "layout": config.layout,
        }
        weights = {"weight": tuple(f"{module}.weight" for module in modules)}
        if form is not None:
            weights = {
                tensor.role: tuple(tensor_name(tensor, module) for module in modules)
                for tensor in form.tensors_of(whole)
            }
        if bias:
            weights["bias"] = tuple(f"{module}.bias" for module in modules)
        return self._call("linear", "+".join(modules), (value,), attrs, **weights)

    def row_linear(self, module: str, value: str, in_features: int, bias: bool) -> str:
        """A product whose input columns are split over the ranks, then summed.

        Every rank holds the whole bias; the group's first adds it, so that the sum has it once.
        """
        out = self.linear(
            (module,),
            value,
            in_features=in_features,
            out_features=self.config.arch.hidden_size,
            bias=bias and self.mapping.tp_rank == 0,
        )
        return out if self.mapping.tp_size == 1 else self.allreduce(f"{module}.allreduce", out)

    def add(self, name: str, a: str, b: str) -> str:
        attrs: dict[str, Attr] = {"hidden_size": self.config.arch.hidden_size, "scale": 1.0}
        return self._call("add", name, (a, b), attrs)

    def allreduce(self, name: str, value: str) -> str:
        attrs: dict[str, Attr] = {
            "num_columns": self.config.arch.hidden_size,
            "group": self._group(),
        }
        return self._call("allreduce", name, (value,), attrs)

    def allgather(self, name: str, value: str, rows: str, local: int, columns: int) -> str:
        attrs: dict[str, Attr] = {
            "rows": rows,
            "local_columns": local,
            "num_columns": columns,
            "group": self._group(),
        }
        return self._call("allgather", name, (value,), attrs)

    def send(self, name: str, value: str, rows: str, columns: int, peer: int) -> None:
        attrs: dict[str, Attr] = {"rows": rows, "num_columns": columns, "peer": peer}
        self.ops.append(OpCall(plugin="send", name=name, inputs=(value,), outputs=(), attrs=attrs))

    def receive(self, name: str, rows: str, columns: int, peer: int) -> str:
        return self._call("recv", name, (), {"rows": rows, "num_columns": columns, "peer": peer})

    def _call(
        self,
        plugin: str,
        name: str,
        inputs: tuple[str, ...],
        attrs: dict[str, Attr],
        **weights: tuple[str, ...],
    ) -> str:
        """Append a call with one output, named after it; the logits are called so everywhere."""
        output = "logits" if name == self._logits_op() else f"{name}:out"
        self.ops.append(
            OpCall(
                plugin=plugin,
                name=name,
                inputs=inputs,
                outputs=(output,),
                attrs=attrs,
                weights=weights,
            )
        )
        return output

    def _logits_op(self) -> str:
        """Return the name of the op whose output is this rank's logits."""
        if self.mapping.pp_size > 1 and self.mapping.rank == 0:
            return "logits"
        return "lm_head" if self.mapping.tp_size == 1 else "lm_head.allgather"

    def _global_name(self, module: str) -> str:
        """Return the name of a module whose layer is counted inside the stage, counted from 0."""
        if not module.startswith("transformer.layers."):
            return module
        first, second, local, rest = module.split(".", 3)
        layers = self.mapping.stage_layers(self.config.arch.num_hidden_layers)
        return f"{first}.{second}.{layers.start + int(local)}.{rest}"

    def _group(self) -> tuple[int, ...]:
        first = self.mapping.pp_rank * self.mapping.tp_size
        return tuple(range(first, first + self.mapping.tp_size))

    def _peer(self, stages: int) -> int:
        return self.mapping.rank + stages * self.mapping.tp_size
