"""Spec of `head_norm`: q and k heads of [q heads | k heads | v heads] normalized, v untouched.

With `per_head` the weights are [num_heads, head_size] and [num_kv_heads, head_size].
"""

from llmc.plugins.graph import Attribute, OpSpec, WeightRole

_COLUMNS = "(num_heads + 2 * num_kv_heads) * head_size"

SPEC = OpSpec(
    name="head_norm",
    inputs={"qkv": ("T", _COLUMNS)},
    outputs={"normed": ("T", _COLUMNS)},
    attributes={
        "num_heads": Attribute(types=(int,), meaning="query heads on this rank"),
        "num_kv_heads": Attribute(types=(int,), meaning="KV heads on this rank"),
        "head_size": Attribute(types=(int,), meaning="columns of one head"),
        "kind": Attribute(types=(str,), meaning='"rms_norm" or "layer_norm", both without bias'),
        "epsilon": Attribute(types=(float,), meaning="added to the mean square or variance"),
        "per_head": Attribute(
            types=(bool,),
            meaning="each head has its own row of the weights; else all share theirs",
        ),
    },
    weights={
        "q_weight": WeightRole(shape=("head_size",)),
        "k_weight": WeightRole(shape=("head_size",)),
    },
)
