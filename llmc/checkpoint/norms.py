"""The norms of a model: where they stand, what their modules are called, and their tensors.

Source: names as in NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/*/model.py, q_layernorm and
k_layernorm as in 1.x; a norm of a family that it does not know is called as one like it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from llmc.arch import ModelArch
from llmc.checkpoint.split import Segment, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorms:
    """Names of a layer's norms, relative to it; None where there is none.

    In parallel attention without `before_mlp` the MLP reads what attention reads.
    """

    before_attention: str | None
    after_attention: str | None
    before_mlp: str | None
    after_mlp: str | None


def layer_norms(arch: ModelArch) -> LayerNorms:
    """Return the norms every layer of `arch` has."""
    is_pre, is_post = arch.norm_placement != "post", arch.norm_placement != "pre"
    shared = arch.parallel_attention and arch.parallel_norms == 1
    return LayerNorms(
        before_attention="input_layernorm" if is_pre else None,
        after_attention="post_layernorm" if is_post else None,
        before_mlp=arch.mlp_norm if is_pre and not shared else None,
        after_mlp="post_feedforward_layernorm" if is_post else None,
    )


def norm_specs(arch: ModelArch, name: str, layer: int | None = None) -> Iterator[TensorSpec]:
    """Yield the tensors of the norm called `name`."""
    for part in ("weight", "bias") if arch.norm_bias else ("weight",):
        yield TensorSpec(name=f"{name}.{part}", shape=(arch.hidden_size,), layer=layer)


def qk_norm_specs(arch: ModelArch, attention: str, layer: int) -> Iterator[TensorSpec]:
    """Yield the tensors of the norms of q and k, which are split as the heads are."""
    if arch.qk_norm is None:
        return
    size = arch.head_size
    for name, heads in (("q", arch.num_attention_heads), ("k", arch.num_key_value_heads)):
        shape, segment = {
            "head": ((size,), None),
            "per_head": ((heads, size), Segment(count=heads)),
            "full": ((heads * size,), Segment(count=heads, size=size)),
        }[arch.qk_norm]
        yield TensorSpec(
            name=f"{attention}.{name}_layernorm.weight",
            shape=shape,
            axis=None if segment is None else 0,
            segments=() if segment is None else (segment,),
            layer=layer,
        )
