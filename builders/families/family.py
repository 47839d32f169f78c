"""What a family file states: how to read its config, and where each checkpoint tensor comes from.

Rules are data (llmc.builders.families.rules). Shapes and splits are not a family's business:
`llmc.checkpoint.schema` derives them from the architecture, and the network is written from it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families import FAMILIES
from llmc.builders.families.rules import Rows, Rule
from llmc.builders.hf.config import HfConfig
from llmc.checkpoint import CheckpointConfig, TensorSpec
from llmc.lookup import load


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family.

    `read_arch` fills what the network is built from. `settings` are the further keys that
    TensorRT-LLM's config.json has for that architecture, and `left_out` the common ones it lacks
    ("mapping.cp_size" for one within an object).

    `rules` name whole modules; `layer_rules` are relative to "transformer.layers.N." on our side
    and to `layer_prefix` on the other. Of several rules for one target the first whose tensors are
    all there holds. `base_prefix` is one that models saved without their head lack. `tied` is
    (output tensor, embedding tensor) of the checkpoint: the first takes the second's source when
    the model ties them and brings no output tensor. `harmless` are patterns of tensors that may
    remain unread.

    `tensorrt_llm`: the first version of TensorRT-LLM, of those whose source was read (0.17, 0.20,
    1.0), that builds from the checkpoint; None when none up to 1.2 does. `smoothquant`: whether its
    converter writes SmoothQuant's formats.
    """

    read_arch: Callable[[HfConfig], ModelArch]
    rules: tuple[Rule, ...]
    layer_rules: tuple[Rule, ...]
    layer_prefix: str
    base_prefix: str = ""
    tied: tuple[str, str] = ("lm_head.weight", "transformer.vocab_embedding.weight")
    harmless: tuple[str, ...] = ()
    settings: Callable[[ModelArch], dict[str, Any]] = field(default=lambda arch: {})
    left_out: tuple[str, ...] = ()
    tensorrt_llm: str | None = None
    smoothquant: bool = False

    def arch(self, config: HfConfig) -> ModelArch:
        """Return the architecture `config` describes; what cannot be converted is noted there."""
        arch = self.read_arch(config)
        return replace(
            arch, family_settings=self.settings(arch), left_out=tuple(sorted(self.left_out))
        )

    def sources(
        self, spec: TensorSpec, arch: ModelArch, present: Collection[str] | None = None
    ) -> tuple[Rows, ...]:
        """Return the rows of Hugging Face tensors that are, in order, the tensor of `spec`.

        `present` are the model's tensors, where they decide between rules (None: the first rule).
        """
        found = []
        for rule in self._rules_for(spec):
            if not rule.when(arch):
                continue
            rows = tuple(rule.rows(spec, arch, partial(self._tensor_name, spec, rule)))
            if present is not None and self.base_prefix:
                rows = tuple(self._without_base(row, present) for row in rows)
            if present is None or all(row.source in present for row in rows):
                return rows
            found.append(rows)
        assert found, f"{spec.name}: no rule"
        return found[0]

    @property
    def reads_mxfp4(self) -> bool:
        """Whether its rules know weights in MXFP4, which become plain ones."""
        return any(rule.mxfp4 for rule in self.layer_rules)

    def is_harmless(self, name: str) -> bool:
        """Say whether Hugging Face tensor `name` may be left unread."""
        return any(fnmatchcase(name, pattern) for pattern in self.harmless)

    def _rules_for(self, spec: TensorSpec) -> list[Rule]:
        rules, name = self.rules, spec.name
        if spec.layer is not None:
            name = name.removeprefix(f"transformer.layers.{spec.layer}.")
            rules = self.layer_rules
        module = name.rpartition(".")[0]
        of_experts = spec.expert_parallel is not None
        found = [
            rule
            for rule in rules
            if rule.target in (name, module)
            and rule.of_experts == of_experts
            and (of_experts or len(rule.sources) in (1, len(spec.segments)))
        ]
        assert found, f"{spec.name}: no rule"
        return found

    def _tensor_name(self, spec: TensorSpec, rule: Rule, source: str) -> str:
        """Return the name of the tensor of module (or tensor) `source` that `spec` is made of."""
        prefix = "" if spec.layer is None else self.layer_prefix.format(layer=spec.layer)
        is_tensor = spec.name.endswith(rule.target)
        part = "" if is_tensor else "." + spec.name.rpartition(".")[2]
        return f"{prefix}{source}{part}"

    def _without_base(self, row: Rows, present: Collection[str]) -> Rows:
        bare = row.source.removeprefix(self.base_prefix)
        if row.source in present or bare not in present:
            return row
        return replace(row, source=bare)


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
    wanted = load_family(arch.architecture).settings(arch)
    return _differences(arch.family_settings, wanted, prefix="")


def unwritten_formats(config: CheckpointConfig) -> list[str]:
    """Return why TensorRT-LLM has no such checkpoint of this family: SmoothQuant's plugin formats.

    Each replaces the attention, MLP and norm classes of one model by quantized ones, so that only
    the families whose converter does so can be read back (0.17 quantization/quantize.py,
    smooth_quantize_plugin). The other formats are of single linear modules and know no family.
    """
    arch, algo = config.arch, config.quantization.quant_algo or ""
    if not algo.endswith("_PLUGIN") or load_family(arch.architecture).smoothquant:
        return []
    return [
        f"{algo}: TensorRT-LLM has no SmoothQuant converter for this architecture;"
        " W8A8_SQ_PER_CHANNEL needs none"
    ]


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
