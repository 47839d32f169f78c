"""Which format each group of linears gets, so that the model loses least within a budget of bits.

A group is what TensorRT-LLM lets differ and what is worth telling apart: the attention or the MLP
of one layer. Quantizing a group alone costs a measured divergence (`sensitivity`); costs are taken
to add up. What remains is the multiple-choice knapsack problem: one option of each group, least
divergence in sum, at most so many bits in sum.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llmc.arch import ModelArch
from llmc.checkpoint import MIXED_PRECISION, Linear, Quantization, layer_linears
from llmc.dtypes import numpy_dtype
from llmc.quant.format import load_format, tensor_name

SENSITIVITIES_NAME = "sensitivities.json"

MAX_UNITS = 1 << 16
"""Budgets of more bits are counted in units of several, so that the table stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One format of a group, None for unquantized: its bits, scales included, and its KL."""

    algo: str | None
    bits: int
    kl: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Linear modules of one layer that are quantized alike; `name` is theirs in common."""

    name: str
    layer: int
    modules: tuple[str, ...]
    num_weights: int
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivities:
    """What quantizing each group alone costs. KL in nats a token, mean over `num_tokens`."""

    num_tokens: int
    groups: tuple[Group, ...]

    def write(self, directory: Path) -> None:
        """Write sensitivities.json."""
        text = json.dumps(asdict(self), indent=1)
        (directory / SENSITIVITIES_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> "Sensitivities":
        """Read what `write` wrote."""
        data = json.loads((directory / SENSITIVITIES_NAME).read_text(encoding="utf-8"))
        groups = tuple(
            Group(
                name=group["name"],
                layer=group["layer"],
                modules=tuple(group["modules"]),
                num_weights=group["num_weights"],
                options=tuple(Option(**option) for option in group["options"]),
            )
            for group in data["groups"]
        )
        return cls(num_tokens=data["num_tokens"], groups=groups)


def module_groups(arch: ModelArch) -> Iterator[tuple[str, tuple[Linear, ...]]]:
    """Yield name and linear modules of each layer's attention and MLP."""
    for layer in range(arch.num_hidden_layers):
        linears = layer_linears(arch, layer)
        for kind in ("attention", "mlp"):
            name = f"transformer.layers.{layer}.{kind}"
            yield name, tuple(item for item in linears if item.name.startswith(f"{name}."))


def stored_bits(linears: Sequence[Linear], quantization: Quantization, dtype: str) -> int:
    """Return the bits of the modules' weights in a format, with scales and all else it stores."""
    if quantization.quant_algo is None:
        weights = sum(linear.num_out * linear.num_in for linear in linears)
        return 8 * numpy_dtype(dtype).itemsize * weights
    form = load_format(quantization.quant_algo)
    sizes = {}
    for linear in linears:
        for tensor in form.tensors_of(linear.name):
            shape = tensor.shape(linear.num_out, linear.num_in, quantization.group_size)
            width = numpy_dtype(tensor.dtype or dtype).itemsize
            sizes[tensor_name(tensor, linear.name)] = 8 * width * prod(shape)
    return sum(sizes.values())


def mixture(arch: ModelArch, choices: Sequence[Quantization | None]) -> Quantization:
    """Return the quantization that has `choices`, in the order of `module_groups`."""
    layers: dict[str, Quantization] = {}
    for (_, linears), choice in zip(module_groups(arch), choices, strict=True):
        if choice is not None:
            layers |= {linear.name: choice for linear in linears}
    return Quantization(quant_algo=MIXED_PRECISION, quantized_layers=layers)


def average_bits(groups: Sequence[Group], options: Sequence[Option]) -> float:
    """Return bits for each weight of the groups."""
    return sum(option.bits for option in options) / sum(group.num_weights for group in groups)


def choose_options(groups: Sequence[Group], target_bits: float) -> tuple[Option, ...] | None:
    """Return the option of each group, None when even the smallest exceed the average."""
    budget = int(target_bits * sum(group.num_weights for group in groups))
    return solve([group.options for group in groups], budget)


def solve(groups: Sequence[Sequence[Option]], budget: int) -> tuple[Option, ...] | None:
    """Return one option a group with the least sum of KL whose bits are at most `budget`.

    Dynamic programming over the budget: best[b] is the least KL of the groups so far in b bits.
    Exact while `budget` is below MAX_UNITS; above it bits are counted in units, each option's
    rounded up, which never exceeds the budget and leaves at most a unit a group of it unused.
    None when nothing fits.
    Source: Kellerer, Pferschy, Pisinger, Knapsack Problems (2004), 11.5, for the algorithm; that
    divergences add up, HAWQ-V2, arXiv 1911.03852.
    """
    unit = -(-(budget + 1) // MAX_UNITS) if budget >= MAX_UNITS else 1
    size = budget // unit + 1
    best: npt.NDArray[np.float64] = np.zeros(max(size, 1))
    taken = []
    for options in groups:
        after: npt.NDArray[np.float64] = np.full(size, np.inf)
        choice: npt.NDArray[np.int16] = np.full(size, -1, np.int16)
        for index, option in enumerate(options):
            cost = -(-option.bits // unit)
            if cost >= size:
                continue
            candidate = best[: size - cost] + option.kl
            better = candidate < after[cost:]
            after[cost:][better] = candidate[better]
            choice[cost:][better] = index
        best = after
        taken.append(choice)
    place, chosen = size - 1, []
    for options, choice in zip(reversed(groups), reversed(taken), strict=True):
        index = int(choice[place])
        if index < 0:
            return None
        chosen.append(options[index])
        place -= -(-options[index].bits // unit)
    return tuple(reversed(chosen))
