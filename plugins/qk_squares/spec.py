"""Spec of `qk_squares`: what `wide_qk_norm` needs to know of a token, summable over ranks."""

from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="qk_squares",
    inputs={"qkv": ("T", "(num_heads + 2 * num_kv_heads) * head_size")},
    outputs={"squares": ("T", "2")},
    attributes={
        "num_heads": Attribute(types=(int,), meaning="query heads on this rank"),
        "num_kv_heads": Attribute(types=(int,), meaning="KV heads on this rank"),
        "head_size": Attribute(types=(int,), meaning="columns of one head"),
    },
)
