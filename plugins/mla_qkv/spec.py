"""Spec of `mla_qkv`: multi-head latent attention as plain multi-head attention.

Heads of q come as [columns without a position | rotating ones], k and v as those of k without a
position for all heads, then v for all heads; `rope` are the rotating columns of k, the same for
every head. In the output a head of q or k is [rotating | others], so that `attention` rotates the
first `rope_size` of it, and a head of v is filled up with zeros to the same size.
Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
"""

from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="mla_qkv",
    inputs={
        "q": ("T", "num_heads * (nope_size + rope_size)"),
        "kv": ("T", "num_heads * (nope_size + value_size)"),
        "rope": ("T", "rope_size"),
    },
    outputs={"qkv": ("T", "num_heads * (nope_size + rope_size) * (1 + 2)")},
    attributes={
        "num_heads": Attribute(types=(int,), meaning="heads on this rank"),
        "nope_size": Attribute(types=(int,), meaning="a head's columns that do not rotate"),
        "rope_size": Attribute(types=(int,), meaning="a head's columns that rotate"),
        "value_size": Attribute(types=(int,), meaning="a head's columns of v, at most both sums"),
    },
)
