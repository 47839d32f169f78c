"""A checkpoint's network as a TensorRT network of one rank, without building a plan of it.

Walks builders.network's ops, lowers each, and declares what the plan is bound to: INPUTS, a KV
cache for each layer, and the logits. Weights are embedded or left as named placeholders; either way
`LoweredNetwork.weights` can make their values again, for a refit.

Legend: B slots, S tokens of each, L rows of each whose logits are wanted, C max_seq_len.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from llmc.builders.network import build_network
from llmc.builders.targets.tensorrt_toolkit import Toolkit
from llmc.checkpoint import CheckpointConfig
from llmc.dtypes import dtype_name
from llmc.errors import CheckpointError
from llmc.plugins import graph
from llmc.plugins.tensorrt_layers import Layers, Tensor
from llmc.plugins.tensorrt_lowering import MakeArray
from llmc.weights import SafetensorsFile

Weights = Literal["embed", "refit"]

INPUTS: dict[str, tuple[str, ...]] = {
    "token_ids": ("B", "S"),
    "positions": ("B", "S"),
    "write_indices": ("B",),
    "kv_lens": ("B",),
    "logits_rows": ("B", "L"),
}
"""Input, int32 → shape. `positions` of each token; `write_indices`, where in the cache a slot's S
tokens go; `kv_lens`, how much of the cache holds something after that; `logits_rows`, which of the
S are wanted."""

INPUTS_IF_READ: dict[str, tuple[str, ...]] = {"prompt_lens": ("B",)}
"""Inputs of networks only that read them, int32. `prompt_lens`: tokens of each slot's prompt."""

TABLES = ("transformer.vocab_embedding.weight", "lm_head.weight")
"""Weights that a plan built without weights takes as inputs instead of placeholders: the builder
fills placeholders, and a table of the vocabulary several times over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One input or output of the plan. Axes without a fixed length have the legend's letters.

    `aliases`: an output in the memory of this input. `is_weight`: one of the checkpoint's tensors,
    bound once for all steps.
    """

    name: str
    is_input: bool
    dtype: str
    shape: tuple[int | str, ...]
    aliases: str | None = None
    is_weight: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """What a plan is given when it is loaded. `make` reads and converts its values."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    make: MakeArray


@dataclass(slots=True, kw_only=True)
class LoweredNetwork:
    """The definition, what it is bound to, and its weights by name.

    `kept` are the arrays that the definition points into: they must live until it is built.
    `notes` say what is slower than it might be.
    """

    network: Any
    bindings: tuple[Binding, ...]
    weights: dict[str, Weight]
    num_attentions: int
    num_collectives: int
    notes: tuple[str, ...] = ()
    kept: list[npt.NDArray[Any]] = field(default_factory=list)


def lower_network(
    toolkit: Toolkit,
    config: CheckpointConfig,
    rank: int,
    *,
    max_seq_len: int,
    weights: Weights,
    table_inputs: bool | None = None,
    file: SafetensorsFile | None = None,
) -> LoweredNetwork:
    """Write `rank`'s network.

    `file` has the rank's tensors; with `weights` "refit" it may be None. `table_inputs`: whether
    TABLES are inputs; None: as plans are built, with "refit".
    Raises: UnsupportedError as build_network; BuildError naming the op whose layer is refused;
    CheckpointError for tied tables that differ.
    """
    assert weights == "refit" or file is not None
    trt = toolkit.trt
    # From TensorRT 11 on every network is strongly typed, and the flag is gone.
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    definition = toolkit.builder.create_network(0 if flag is None else 1 << int(flag))
    lowering = NetworkLowering(
        layers=Layers(trt, definition, toolkit.last_error),
        config=config,
        max_seq_len=max_seq_len,
        embeds=weights == "embed",
        table_inputs=weights == "refit" if table_inputs is None else table_inputs,
        file=file,
    )
    network = build_network(config, rank)
    lowering.declare_inputs()
    for call in network.ops:
        lowering.layers.scope = call.name
        graph.part(call.plugin, "tensorrt").lower(call, lowering)
    lowering.layers.scope = "output"
    for name in network.outputs:
        lowering.declare_logits(name)
    return LoweredNetwork(
        network=definition,
        bindings=tuple(lowering.bindings),
        weights=lowering.weights,
        num_attentions=sum(call.plugin == "attention" for call in network.ops),
        num_collectives=sum(graph.spec(call.plugin).communicates for call in network.ops),
        notes=tuple(dict.fromkeys(lowering.notes)),
        kept=lowering.kept + lowering.layers.kept,
    )


@dataclass(slots=True, kw_only=True)
class NetworkLowering:
    """What the plugins see while one rank is lowered (plugins.tensorrt_lowering.Lowering)."""

    layers: Layers
    config: CheckpointConfig
    max_seq_len: int
    embeds: bool
    table_inputs: bool
    file: SafetensorsFile | None
    bindings: list[Binding] = field(default_factory=list)
    weights: dict[str, Weight] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    kept: list[npt.NDArray[Any]] = field(default_factory=list)
    _values: dict[str, Tensor] = field(default_factory=dict)
    _inputs: dict[str, Tensor] = field(default_factory=dict)
    _shared: dict[str, Tensor] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        return self.config.dtype

    @property
    def vocab_size(self) -> int:
        return self.config.arch.vocab_size

    def value(self, name: str) -> Tensor:
        return self._values[name]

    def set_value(self, name: str, tensor: Tensor) -> None:
        assert name not in self._values, name
        self._values[name] = tensor

    def batch_input(self, name: str) -> Tensor:
        if name not in self._inputs:
            self._inputs[name] = self._input(name, "int32", INPUTS_IF_READ[name])
        return self._inputs[name]

    def group_size(self, module: str) -> int:
        return self.config.quantization.of_module(module).group_size

    def note(self, text: str) -> None:
        self.notes.append(text)

    def read(self, names: tuple[str, ...]) -> npt.NDArray[Any]:
        assert self.file is not None, names
        parts = [self.file.read(name) for name in names]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def shared(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        if name not in self._shared:
            self._shared[name] = make()
        return self._shared[name]

    def weight(self, name: str, shape: tuple[int, ...], dtype: str, make: MakeArray) -> Tensor:
        if name in self.weights:
            assert self.weights[name].shape == shape, name
            return self._shared[f"weight.{name}"]
        if self.table_inputs and name in TABLES:
            return self._table(name, shape, dtype, make)
        self.weights[name] = Weight(name=name, shape=shape, dtype=dtype, make=make)
        trt, count = self.layers.trt, int(np.prod(shape))
        pointer = 0
        if self.embeds:
            array = np.ascontiguousarray(make()).reshape(make_shape(shape, dtype))
            assert dtype in _PACKED or dtype_name(array.dtype) == dtype, (name, array.dtype, dtype)
            self.kept.append(array)
            pointer = array.ctypes.data
        values = trt.Weights(self.layers.data_type(dtype), pointer, count)
        layer = self.layers.network.add_constant(shape, values)
        tensor = self.layers.output(layer, "weight")
        # Naming the Weights of the layer works, naming those it was made of does not.
        named = self.layers.network.set_weights_name(layer.weights, name)
        assert self.embeds or named, name
        self._shared[f"weight.{name}"] = tensor
        return tensor

    def _table(self, name: str, shape: tuple[int, ...], dtype: str, make: MakeArray) -> Tensor:
        """Return the input that is this table; of tied tables the second is the first."""
        first, rows_columns = TABLES[0], shape[-2:]
        known = self.weights.get(first)
        tied = self.config.arch.tie_word_embeddings and known and known.shape == rows_columns
        if tied and self.file is not None:
            _check_tied(self.file)
        if not tied:
            self.weights[name] = Weight(name=name, shape=rows_columns, dtype=dtype, make=make)
            table = self._input(name, dtype, rows_columns, is_weight=True)
            self._shared[f"weight.{name}"] = table
        table = self._shared[f"weight.{first if tied else name}"]
        return table if len(shape) == 2 else self.layers.unsqueeze(table)

    def declare_inputs(self) -> None:
        for name, shape in INPUTS.items():
            self._inputs[name] = self._input(name, "int32", shape)
        self._values["token_ids"] = self._inputs["token_ids"]

    def update_kv_cache(
        self, layer: int, keys: Tensor, values: Tensor, *, spare: int = 0
    ) -> tuple[Tensor, Tensor]:
        trt, network = self.layers.trt, self.layers.network
        found = []
        for kind, new in (("key", keys), ("value", values)):
            name = f"{kind}_cache.{layer}"
            _, heads, _, size = new.shape
            shape = ("B", heads, self.max_seq_len + spare, size)
            cache = self._input(name, self.dtype, shape)
            update = network.add_kv_cache_update(
                cache, new, self._inputs["write_indices"], trt.KVCacheMode.LINEAR
            )
            whole = self.layers.output(update, f"{kind}_cache")
            whole.name = f"{name}.updated"
            network.mark_output(whole)
            self._declare(whole.name, self.dtype, shape, aliases=name)
            found.append(whole)
        return found[0], found[1]

    def declare_logits(self, name: str) -> None:
        """Make the value called `name` an output of float32, [B, L, columns]."""
        wide = self.layers.cast(self._values[name], self.config.logits_dtype)
        wide.name = name
        self.layers.network.mark_output(wide)
        self._declare(name, self.config.logits_dtype, ("B", "L", wide.shape[2]))

    def _input(
        self, name: str, dtype: str, shape: tuple[int | str, ...], *, is_weight: bool = False
    ) -> Tensor:
        dims = tuple(-1 if isinstance(length, str) else length for length in shape)
        tensor = self.layers.network.add_input(name, self.layers.data_type(dtype), dims)
        for axis, length in enumerate(shape):
            if isinstance(length, str):
                tensor.set_dimension_name(axis, length)
        self.bindings.append(
            Binding(name=name, is_input=True, dtype=dtype, shape=shape, is_weight=is_weight)
        )
        return tensor

    def _declare(
        self, name: str, dtype: str, shape: tuple[int | str, ...], aliases: str | None = None
    ) -> None:
        self.bindings.append(
            Binding(name=name, is_input=False, dtype=dtype, shape=shape, aliases=aliases)
        )


def _check_tied(file: SafetensorsFile) -> None:
    first, second = TABLES
    if not np.array_equal(file.read(first), file.read(second)):
        raise CheckpointError(
            f"{second}: not {first}, though tie_word_embeddings says so; a plan without weights has"
            " one input for both",
            hint="build with --weights embed",
        )


_PACKED = ("int4", "float4_e2m1")


def make_shape(shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    """Return the shape of the array a weight's `make` returns: two 4-bit elements to a byte."""
    return (*shape[:-1], shape[-1] // 2) if dtype in _PACKED else shape
