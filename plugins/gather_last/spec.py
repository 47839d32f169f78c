"""Spec of `gather_last`: rows batch.logits_rows of the hidden states."""

from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="gather_last",
    inputs={"hidden": ("T", "hidden_size")},
    outputs={"last": ("L", "hidden_size")},
    attributes={"hidden_size": Attribute(types=(int,), meaning="columns")},
    reads_batch=("logits_rows",),
)
