"""Spec of `take_columns`: of each of `groups` groups of `group_size` columns, a run of them."""

from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="take_columns",
    inputs={"x": ("T", "groups * group_size")},
    outputs={"y": ("T", "groups * count")},
    attributes={
        "groups": Attribute(types=(int,), meaning="groups of columns of x"),
        "group_size": Attribute(types=(int,), meaning="columns of one"),
        "start": Attribute(types=(int,), meaning="the first column taken of each"),
        "count": Attribute(types=(int,), meaning="how many are taken of each"),
    },
)
