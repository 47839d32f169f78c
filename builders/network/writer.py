"""Appends calls of ops to a program: what every block is written with.

Tensor names are TensorRT-LLM's. Where a product's columns are split over the ranks, or a
vocabulary's rows, the collective follows at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmc.arch import ModelArch
from llmc.checkpoint import CheckpointConfig
from llmc.mapping import Mapping as RankMapping
from llmc.plugins.graph import Attr, OpCall
from llmc.quant.format import tensor_name


@dataclass(slots=True, kw_only=True)
class Writer:
    """The program of one rank. Methods that return a string return the value they wrote."""

    config: CheckpointConfig
    mapping: RankMapping
    ops: list[OpCall] = field(default_factory=list)

    @property
    def arch(self) -> ModelArch:
        return self.config.arch

    @property
    def heads(self) -> tuple[int, int]:
        """Return the query heads and the KV heads of this rank."""
        tp = self.mapping.tp_size
        return self.arch.num_attention_heads // tp, max(1, self.arch.num_key_value_heads // tp)

    @property
    def group(self) -> tuple[int, ...]:
        """Return the ranks that share this rank's layers."""
        first = self.mapping.pp_rank * self.mapping.tp_size
        return tuple(range(first, first + self.mapping.tp_size))

    def global_layer(self, local: int) -> int:
        """Return the number in the model of a layer that is counted inside the stage."""
        return self.mapping.stage_layers(self.arch.num_hidden_layers).start + local

    def call(
        self,
        plugin: str,
        name: str,
        inputs: tuple[str, ...],
        attrs: dict[str, Attr],
        weights: Mapping[str, tuple[str, ...]] | None = None,
        *,
        output: str | None = None,
    ) -> str:
        """Append a call with one output, named after it unless `output` is given."""
        output = output or f"{name}:out"
        self.ops.append(
            OpCall(
                plugin=plugin,
                name=name,
                inputs=inputs,
                outputs=(output,),
                attrs=attrs,
                weights=dict(weights or {}),
            )
        )
        return output

    def norm(self, name: str | None, value: str) -> str:
        """Norm `value`, or return it as it is where there is no norm."""
        if name is None:
            return value
        arch = self.arch
        attrs: dict[str, Attr] = {
            "hidden_size": arch.hidden_size,
            "epsilon": float(arch.norm_epsilon),
        }
        weights = {"weight": (f"{name}.weight",)}
        if arch.norm_bias:
            weights["bias"] = (f"{name}.bias",)
        return self.call(arch.norm_type, name, (value,), attrs, weights)

    def linear(
        self,
        modules: tuple[str, ...],
        value: str,
        *,
        in_features: int,
        out_features: int,
        bias: bool,
        output: str | None = None,
    ) -> str:
        """One product over the weights of `modules`, whose outputs stand side by side."""
        attrs: dict[str, Attr] = {"in_features": in_features, "out_features": out_features}
        attrs |= self.quantization_attrs(modules[0])
        weights = self.linear_weights(modules)
        if bias:
            weights["bias"] = tuple(f"{module}.bias" for module in modules)
        name = "+".join(modules)
        return self.call("linear", name, (value,), attrs, weights, output=output)

    def quantization_attrs(self, module: str) -> dict[str, Attr]:
        """Return the attributes that say how the weights of `module` are stored."""
        config, whole = self.config, self._global_name(module)
        return {
            "quant": config.quantization.of_module(whole).quant_algo or "none",
            "stored_quantized": config.stored_format(whole) is not None,
            "layout": config.layout,
        }

    def linear_weights(self, modules: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """Return the tensors of `modules` but their biases, by role."""
        whole = self._global_name(modules[0])
        form = self.config.stored_format(whole)
        if form is None:
            return {"weight": tuple(f"{module}.weight" for module in modules)}
        return {
            tensor.role: tuple(tensor_name(tensor, module) for module in modules)
            for tensor in form.tensors_of(whole)
        }

    def row_linear(self, module: str, value: str, in_features: int, bias: bool) -> str:
        """A product whose input columns are split over the ranks, then summed.

        Every rank holds the whole bias; the group's first adds it, so that the sum has it once.
        """
        hidden = self.arch.hidden_size
        out = self.linear(
            (module,),
            value,
            in_features=in_features,
            out_features=hidden,
            bias=bias and self.mapping.tp_rank == 0,
        )
        return self.allreduce(f"{module}.allreduce", out, hidden)

    def add(self, name: str, a: str, b: str, scale: float) -> str:
        attrs: dict[str, Attr] = {"hidden_size": self.arch.hidden_size, "scale": scale}
        return self.call("add", name, (a, b), attrs)

    def allreduce(self, name: str, value: str, columns: int) -> str:
        """Sum over the group; of one rank, the value itself."""
        if self.mapping.tp_size == 1:
            return value
        attrs: dict[str, Attr] = {"num_columns": columns, "group": self.group}
        return self.call("allreduce", name, (value,), attrs)

    def allgather(
        self, name: str, value: str, rows: str, local: int, columns: int, output: str | None = None
    ) -> str:
        attrs: dict[str, Attr] = {
            "rows": rows,
            "local_columns": local,
            "num_columns": columns,
            "group": self.group,
        }
        return self.call("allgather", name, (value,), attrs, output=output)

    def send(self, name: str, value: str, rows: str, columns: int, peer: int) -> None:
        attrs: dict[str, Attr] = {"rows": rows, "num_columns": columns, "peer": peer}
        self.ops.append(OpCall(plugin="send", name=name, inputs=(value,), outputs=(), attrs=attrs))

    def receive(
        self, name: str, rows: str, columns: int, peer: int, output: str | None = None
    ) -> str:
        attrs: dict[str, Attr] = {"rows": rows, "num_columns": columns, "peer": peer}
        return self.call("recv", name, (), attrs, output=output)

    def _global_name(self, module: str) -> str:
        """Return the name of a module whose layer is counted inside the stage, counted from 0."""
        if not module.startswith("transformer.layers."):
            return module
        first, second, local, rest = module.split(".", 3)
        return f"{first}.{second}.{self.global_layer(int(local))}.{rest}"
