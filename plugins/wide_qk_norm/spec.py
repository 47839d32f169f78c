"""Spec of `wide_qk_norm`: q and k normalized over the heads of all ranks, v untouched.

The sums of squares come from `qk_squares`, through an `allreduce` where heads are split.
"""

from llmc.plugins.graph import Attribute, OpSpec, WeightRole

_COLUMNS = "(num_heads + 2 * num_kv_heads) * head_size"

SPEC = OpSpec(
    name="wide_qk_norm",
    inputs={"qkv": ("T", _COLUMNS), "squares": ("T", "2")},
    outputs={"normed": ("T", _COLUMNS)},
    attributes={
        "num_heads": Attribute(types=(int,), meaning="query heads on this rank"),
        "num_kv_heads": Attribute(types=(int,), meaning="KV heads on this rank"),
        "head_size": Attribute(types=(int,), meaning="columns of one head"),
        "total_heads": Attribute(types=(int,), meaning="query heads that `squares` sums over"),
        "total_kv_heads": Attribute(types=(int,), meaning="KV heads that `squares` sums over"),
        "epsilon": Attribute(types=(float,), meaning="added to the mean squares"),
    },
    weights={
        "q_weight": WeightRole(shape=("num_heads * head_size",)),
        "k_weight": WeightRole(shape=("num_kv_heads * head_size",)),
    },
)
