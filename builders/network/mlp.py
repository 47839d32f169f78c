"""The MLP block: products to the intermediate size, the activation, and the product back."""

from llmc.builders.network.writer import Writer
from llmc.checkpoint import MLP_MODULES
from llmc.plugins.graph import Attr


def mlp(writer: Writer, local: int, value: str) -> str:
    """Write the dense MLP of a layer; `local` counts inside the stage, as tensor names do."""
    arch, module = writer.arch, f"transformer.layers.{local}.mlp"
    inner = arch.intermediate_size // writer.mapping.tp_size
    modules = MLP_MODULES[arch.mlp_type]
    product = writer.linear(
        tuple(f"{module}.{name}" for name in modules),
        value,
        in_features=arch.hidden_size,
        out_features=sum(modules.values()) * inner,
        bias=arch.mlp_bias,
    )
    name, attrs = f"{module}.activation", dict[str, Attr](activation=arch.activation)
    if arch.mlp_type == "plain":
        activated = writer.call("activation", name, (product,), attrs | {"columns": inner})
    else:
        attrs |= {
            "intermediate_size": inner,
            "activated_half": 0 if arch.mlp_type == "gated" else 1,
        }
        activated = writer.call("gated_activation", name, (product,), attrs)
    return writer.row_linear(f"{module}.proj", activated, inner, arch.mlp_bias)
