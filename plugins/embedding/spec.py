"""Spec of `embedding`."""

from llmc.plugins.graph import Attribute, OpSpec, WeightRole

SPEC = OpSpec(
    name="embedding",
    inputs={"token_ids": ("T",)},
    outputs={"hidden": ("T", "hidden_size")},
    attributes={
        "vocab_start": Attribute(
            types=(int,),
            meaning="first token id of this rank's table; ids outside it give a row of zeros",
        ),
        "num_embeddings": Attribute(types=(int,), meaning="rows of this rank's table"),
        "hidden_size": Attribute(types=(int,), meaning="columns of this rank's table"),
        "scale": Attribute(types=(float,), meaning="factor of the rows; 1.0 for none"),
    },
    weights={"weight": WeightRole(shape=("num_embeddings", "hidden_size"))},
)
