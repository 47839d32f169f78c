"""The program a target walks: calls of fused ops on named values, and what an op declares.

Owns the vocabulary (`OpSpec`, `OpCall`, `Network`) and the check of a call against its spec. It
knows no family, no target and no tensor data.

Shape legend, the symbols a spec uses beside its own attribute names:
T tokens of the step, L rows whose logits are wanted, and arithmetic written out.
"""

from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from llmc import lookup
from llmc.plugins import PLUGINS

Attr = int | float | str | bool | dict[str, Any] | tuple[int, ...] | None
"""An attribute's value; everything in it survives JSON (a tuple becomes a list)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """One attribute an op takes: the types allowed and what it means, units included."""

    types: tuple[type, ...]
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRole:
    """One weight an op takes. `shape` uses attribute names; an optional role may be absent."""

    shape: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """What a plugin promises. `inputs` and `outputs` map a role to a symbolic shape, in call order.

    `reads_batch` names the fields of the step's batch the op needs beside its inputs.
    `uses_kv_cache`: it reads and writes its layer's pages of the KV pool. `communicates`: it
    finishes only when its peers run theirs, which cuts a program into segments.
    """

    name: str
    inputs: dict[str, tuple[str, ...]]
    outputs: dict[str, tuple[str, ...]]
    attributes: dict[str, Attribute] = field(default_factory=dict)
    weights: dict[str, WeightRole] = field(default_factory=dict)
    reads_batch: tuple[str, ...] = ()
    uses_kv_cache: bool = False
    communicates: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """One op of a network.

    `plugin` is a name of PLUGINS and `name` the module path it came from, unique in its network.
    `weights` maps a role to checkpoint tensor names; several are concatenated on the output axis,
    in order.
    """

    plugin: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Attr] = field(default_factory=dict)
    weights: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Calls in execution order; one value name is written once.

    `inputs` is ("token_ids",) on a rank that embeds, else (); `outputs` is ("logits",) on a rank
    that ends up with the logits, else ().
    """

    ops: tuple[OpCall, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def part(name: str, module: str) -> ModuleType:
    """Import one module ("spec", "reference" or a target's name) of the plugin called `name`.

    Raises: UnsupportedError for an unknown plugin, ModuleNotFoundError for a missing lowering.
    """
    package = lookup.load(PLUGINS, name, package="llmc.plugins", kind="plugin")
    return import_module(f"{package.__name__}.{module}")


@cache
def spec(name: str) -> OpSpec:
    """Return the spec of the plugin called `name`."""
    found: OpSpec = part(name, "spec").SPEC
    return found


def check(network: Network) -> None:
    """Assert that each call fits its spec and each value is written once, before it is read."""
    written = set(network.inputs)
    names: set[str] = set()
    for call in network.ops:
        assert call.name not in names, f"{call.name}: two calls of this name"
        names.add(call.name)
        check_call(call, spec(call.plugin))
        for value in call.inputs:
            assert value in written, f"{call.name}: reads {value} before it is written"
        for value in call.outputs:
            assert value not in written, f"{call.name}: writes {value} a second time"
            written.add(value)
    for value in network.outputs:
        assert value in written, f"output {value} is never written"


def check_call(call: OpCall, declared: OpSpec) -> None:
    """Assert that a call has what its spec declares and nothing else."""
    assert len(call.inputs) == len(declared.inputs), f"{call.name}: inputs {call.inputs}"
    assert len(call.outputs) == len(declared.outputs), f"{call.name}: outputs {call.outputs}"
    assert call.attrs.keys() == declared.attributes.keys(), f"{call.name}: attrs {call.attrs}"
    for key, value in call.attrs.items():
        assert type(value) in declared.attributes[key].types, f"{call.name}.{key}: {value!r}"
    for role, declared_role in declared.weights.items():
        assert declared_role.optional or role in call.weights, f"{call.name}: no {role}"
    assert call.weights.keys() <= declared.weights.keys(), f"{call.name}: {call.weights}"
