"""Spec of `moe_routing`: the experts of each token, best first, and their weights.

Scores are the softmax or the sigmoid of the logits. With `num_groups` groups of neighbouring
experts only those of the `top_groups` best groups can be chosen. `correction_bias` is added where
experts and groups are compared, not in the weights. Of equals the lower number is the better.

The output's first `top_k` columns are expert numbers (exact in any float type for the numbers of
experts there are), the others weights.
"""

from llmc.plugins.graph import Attribute, OpSpec, WeightRole

SPEC = OpSpec(
    name="moe_routing",
    inputs={"logits": ("T", "num_experts")},
    outputs={"routing": ("T", "2 * top_k")},
    attributes={
        "num_experts": Attribute(types=(int,), meaning="experts of the whole model"),
        "top_k": Attribute(types=(int,), meaning="experts each token goes to"),
        "scoring": Attribute(types=(str,), meaning='"softmax" or "sigmoid"'),
        "num_groups": Attribute(types=(int,), meaning="groups of neighbouring experts"),
        "top_groups": Attribute(types=(int,), meaning="groups a token may use"),
        "group_score": Attribute(
            types=(str,),
            meaning='a group\'s score: its "max" or the sum of its best two, "top2_sum"',
        ),
        "renormalize": Attribute(types=(bool,), meaning="whether weights are divided by their sum"),
        "renormalize_epsilon": Attribute(types=(float,), meaning="added to that sum"),
        "scaling_factor": Attribute(types=(float,), meaning="multiplies the weights, last"),
    },
    weights={"correction_bias": WeightRole(shape=("num_experts",), optional=True)},
)
