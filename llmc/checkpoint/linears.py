"""The linear modules of a decoder layer, and the tensors each has in its format.

Source: names and splits as in llmc.checkpoint.schema; a quantized module's tensors are declared by
its format (llmc.quant).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from llmc.arch import MlpType, ModelArch
from llmc.checkpoint.config import CheckpointConfig
from llmc.checkpoint.quantization import MIXED_PRECISION
from llmc.checkpoint.split import Segment, TensorSpec
from llmc.mapping import Mapping
from llmc.quant.format import EXPERTS_SHARE, QuantTensor, tensor_name

MLP_MODULES: dict[MlpType, dict[str, int]] = {
    "gated": {"fc": 1, "gate": 1},
    "gated_fused": {"fc": 2},
    "plain": {"fc": 1},
}
"""Modules of an MLP that read the hidden state, and how many runs of intermediate_size rows each
has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """One linear module with weight [out, in], split by its rows or its columns.

    `name` is global, as "transformer.layers.3.mlp.fc"; `layer` None is lm_head. With `experts` it
    is so many modules whose tensors are stacked, and split over moe_tp and moe_ep.
    """

    name: str
    layer: int | None
    rows: tuple[Segment, ...]
    columns: Segment
    split: Literal["rows", "columns"]
    bias: bool = False
    experts: int | None = None

    def split_size(self, mapping: Mapping) -> int:
        """Return over how many ranks its rows or columns are split."""
        return mapping.tp_size if self.experts is None else mapping.moe_tp

    @property
    def num_out(self) -> int:
        return sum(segment.length for segment in self.rows)

    @property
    def num_in(self) -> int:
        return self.columns.length


def layer_linears(arch: ModelArch, layer: int) -> tuple[Linear, ...]:
    """Return the linear modules of a layer: attention.qkv, attention.dense, and the MLP's.

    Latent attention has no qkv; what it has instead is never quantized (llmc.checkpoint.mla).
    Experts are one module, mlp.fc and mlp.proj, and a shared expert another.
    """
    prefix = f"transformer.layers.{layer}"
    query = Segment(count=arch.num_attention_heads, size=arch.head_size)
    key_value = Segment(count=arch.num_key_value_heads, size=arch.head_size)
    hidden = Segment(count=arch.hidden_size)

    def linear(
        name: str,
        rows: tuple[Segment, ...],
        columns: Segment,
        split: Literal["rows", "columns"],
        bias: bool,
    ) -> Linear:
        return Linear(
            name=f"{prefix}.{name}",
            layer=layer,
            rows=rows,
            columns=columns,
            split=split,
            bias=bias,
        )

    qkv = linear("attention.qkv", (query, key_value, key_value), hidden, "rows", arch.attn_bias)
    attended = query if arch.mla is None else replace(query, size=arch.mla.v_head_dim)
    dense = linear("attention.dense", (hidden,), attended, "columns", arch.dense_bias)
    attention = (qkv, dense) if arch.mla is None else (dense,)

    def mlp(
        module: str, size: int, modules: dict[str, int], bias: bool, experts: int | None = None
    ) -> tuple[Linear, ...]:
        inner = Segment(count=size)
        made = [
            linear(f"{module}.{name}", (inner,) * count, hidden, "rows", bias)
            for name, count in modules.items()
        ]
        made.append(linear(f"{module}.proj", (hidden,), inner, "columns", bias))
        return tuple(replace(one, experts=experts) for one in made)

    moe = arch.moe
    if moe is None or not arch.has_experts(layer):
        modules = MLP_MODULES[arch.mlp_type]
        return attention + mlp("mlp", arch.intermediate_size, modules, arch.mlp_bias)
    fused, shared = MLP_MODULES["gated_fused"], moe.shared_expert_intermediate_size
    experts = mlp("mlp", moe.intermediate_size, fused, moe.expert_bias, moe.num_experts)
    return attention + experts + (mlp("mlp.shared_expert", shared, fused, False) if shared else ())


def lm_head(arch: ModelArch) -> Linear:
    """Return lm_head, whose rows are padded to a multiple of tp_size."""
    return Linear(
        name="lm_head",
        layer=None,
        rows=(Segment(count=arch.vocab_size, padded=True),),
        columns=Segment(count=arch.hidden_size),
        split="rows",
        bias=arch.lm_head_bias,
    )


def distinct_linears(config: CheckpointConfig) -> Iterator[Linear]:
    """Yield the linear modules that may differ in size or format.

    One layer's, or one with experts and one without; every layer's where formats are mixed.
    """
    arch, layers = config.arch, range(config.arch.num_hidden_layers)
    if config.quantization.quant_algo == MIXED_PRECISION:
        chosen = [*layers]
    else:
        chosen = sorted({arch.has_experts(layer): layer for layer in reversed(layers)}.values())
    for layer in chosen:
        yield from layer_linears(arch, layer)
    yield lm_head(config.arch)


def linear_specs(config: CheckpointConfig, linear: Linear) -> Iterator[TensorSpec]:
    """Yield the tensors of `linear`, weight first, bias last."""
    by_rows = linear.split == "rows"
    form = config.stored_format(linear.name)
    if form is None:
        weight = TensorSpec(
            name=f"{linear.name}.weight",
            shape=(linear.num_out, linear.num_in),
            axis=0 if by_rows else 1,
            segments=linear.rows if by_rows else (linear.columns,),
            layer=linear.layer,
        )
        yield _stacked(config, linear, weight)
    else:
        for tensor in form.tensors_of(linear.name):
            yield _quantized_spec(config, linear, tensor)
    if linear.bias:
        bias = TensorSpec(
            name=f"{linear.name}.bias",
            shape=(linear.num_out,),
            axis=0 if by_rows else None,
            segments=linear.rows if by_rows else (),
            layer=linear.layer,
        )
        yield _stacked(config, linear, bias)


def _stacked(config: CheckpointConfig, linear: Linear, spec: TensorSpec) -> TensorSpec:
    """Return `spec` of one module as that of all experts, if `linear` is experts."""
    if linear.experts is None:
        return spec
    return replace(
        spec,
        shape=(linear.experts, *spec.shape),
        axis=None if spec.axis is None else spec.axis + 1,
        expert_parallel=config.mapping.moe_ep,
    )


def misfits(config: CheckpointConfig, linear: Linear) -> list[str]:
    """Return why the quantized tensors of `linear` cannot be split over the ranks."""
    form = config.stored_format(linear.name)
    if form is None:
        return []
    reasons = []
    for tensor in form.tensors_of(linear.name):
        for axis, whole in ((tensor.out_axis, linear.num_out), (tensor.in_axis, linear.num_in)):
            if axis is None:
                continue
            factor = _factor(config, linear, tensor, axis, whole)
            if factor is None:
                reasons.append(
                    f"{linear.name}: {whole} {'rows' if axis == tensor.out_axis else 'columns'} are"
                    f" not whole groups of {tensor.role}"
                )
            elif axis == _split_axis(linear, tensor):
                segments = linear.rows if linear.split == "rows" else (linear.columns,)
                tp_size = linear.split_size(config.mapping)
                if any(segment.divided(factor, tp_size) is None for segment in segments):
                    reasons.append(
                        f"{linear.name}: tp_size {tp_size} splits {whole} {linear.split} into parts"
                        f" that are not multiples of {factor}, as {tensor.role} of"
                        f" {form.algo} needs"
                    )
    return reasons


def _quantized_spec(config: CheckpointConfig, linear: Linear, tensor: QuantTensor) -> TensorSpec:
    group = config.quantization.of_module(linear.name).group_size
    axis = _split_axis(linear, tensor)
    segments: list[Segment] = []
    if axis is not None:
        by_rows = linear.split == "rows"
        whole = linear.num_out if by_rows else linear.num_in
        factor = _factor(config, linear, tensor, axis, whole)
        assert factor is not None, (linear.name, tensor.role)
        for segment in linear.rows if by_rows else (linear.columns,):
            divided = segment.divided(factor, linear.split_size(config.mapping))
            assert divided is not None, (linear.name, tensor.role)
            segments.append(divided)
    spec = TensorSpec(
        name=tensor_name(tensor, linear.name),
        shape=tensor.shape(linear.num_out, linear.num_in, group),
        axis=axis,
        segments=tuple(segments),
        layer=linear.layer,
        dtype=tensor.dtype,
    )
    return spec if tensor.role in EXPERTS_SHARE else _stacked(config, linear, spec)


def _split_axis(linear: Linear, tensor: QuantTensor) -> int | None:
    return tensor.out_axis if linear.split == "rows" else tensor.in_axis


def _factor(
    config: CheckpointConfig, linear: Linear, tensor: QuantTensor, axis: int, whole: int
) -> int | None:
    """Return how many rows or columns of the weight make one of the tensor's; None: uneven."""
    group = config.quantization.of_module(linear.name).group_size
    shape = tensor.shape(linear.num_out, linear.num_in, group)
    # Shapes are floors: one group too few shows in a product that is too small.
    if not shape[axis] or whole % shape[axis]:
        return None
    factor = whole // shape[axis]
    double = tensor.shape(2 * linear.num_out, 2 * linear.num_in, group)
    return factor if double[axis] == 2 * shape[axis] else None
