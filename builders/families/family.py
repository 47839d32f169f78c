"""What a family file states: how to read its config, and where each checkpoint tensor comes from.

Rules are data over module names; "weight" and "bias" follow their module. Shapes and splits are not
a family's business: `llmc.checkpoint.schema` derives them from the architecture.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families import FAMILIES
from llmc.builders.hf.config import HfConfig
from llmc.checkpoint import TensorSpec
from llmc.lookup import load


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Module `target` of the checkpoint is the rows of Hugging Face modules `sources`, in order."""

    target: str
    sources: tuple[str, ...]


def rename(target: str, source: str) -> Rule:
    """State that `source` becomes `target` as it is."""
    return Rule(target=target, sources=(source,))


def fuse(target: str, *sources: str) -> Rule:
    """State that the rows of `sources`, one after another, become `target`."""
    return Rule(target=target, sources=sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family.

    `rules` name whole modules; `layer_rules` are relative to "transformer.layers.N." on our side
    and to `layer_prefix` on the other. `tied` is (output tensor, embedding tensor) of the
    checkpoint: the first takes the second's source when the model ties them and brings no output
    tensor. `harmless` are patterns of tensors that may remain unread. `settings` are the family's
    further config.json keys, with the one value each may have; `arch_values` likewise for fields
    of ModelArch.
    """

    read_arch: Callable[[HfConfig], ModelArch]
    rules: tuple[Rule, ...]
    layer_rules: tuple[Rule, ...]
    layer_prefix: str
    tied: tuple[str, str]
    harmless: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    arch_values: dict[str, Any] = field(default_factory=dict)

    def sources(self, spec: TensorSpec) -> tuple[str, ...]:
        """Return the Hugging Face tensors whose rows, in order, are the tensor of `spec`."""
        module, _, part = spec.name.rpartition(".")
        rules, prefix = self.rules, ""
        if spec.layer is not None:
            module = module.removeprefix(f"transformer.layers.{spec.layer}.")
            rules, prefix = self.layer_rules, self.layer_prefix.format(layer=spec.layer)
        matching = [rule for rule in rules if rule.target == module]
        assert len(matching) == 1, f"{spec.name}: {len(matching)} rules"
        return tuple(f"{prefix}{source}.{part}" for source in matching[0].sources)

    def is_harmless(self, name: str) -> bool:
        """Say whether Hugging Face tensor `name` may be left unread."""
        return any(fnmatchcase(name, pattern) for pattern in self.harmless)


def load_family(architecture: str) -> Family:
    """Return the family of `architecture`. Raises: UnsupportedError naming the known ones."""
    package = "llmc.builders.families"
    family = load(FAMILIES, architecture, package=package, kind="architecture").FAMILY
    assert isinstance(family, Family), architecture
    return family


def unhandled_settings(arch: ModelArch) -> list[str]:
    """Return what a checkpoint's config.json sets that the network of its family would not honour.

    Our own checkpoints never do; one written elsewhere may.
    """
    if arch.architecture not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        return [f"architecture: {arch.architecture!r}, expected one of {known}"]
    family = load_family(arch.architecture)
    reasons = []
    for key, wanted in family.arch_values.items():
        if (found := getattr(arch, key)) != wanted:
            reasons.append(f"{key}: {found!r}, expected {wanted!r}")
    return reasons + _differences(arch.family_settings, family.settings, prefix="")


def _differences(found: dict[str, Any], wanted: dict[str, Any], *, prefix: str) -> list[str]:
    """Return a line per key of `found` that has another value than in `wanted`, or is not there."""
    reasons = []
    for key, value in found.items():
        name = prefix + key
        if key not in wanted:
            if value not in (None, False, 0, "", [], {}):
                reasons.append(f"{name}: {value!r}, expected no such setting")
        elif isinstance(value, dict) and isinstance(wanted[key], dict):
            reasons += _differences(value, wanted[key], prefix=f"{name}.")
        elif value != wanted[key]:
            reasons.append(f"{name}: {value!r}, expected {wanted[key]!r}")
    return reasons
