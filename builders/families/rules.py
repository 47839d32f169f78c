"""Where the tensors of a checkpoint come from, as data: rules of a family, and the rows they name.

A checkpoint tensor is rows of Hugging Face tensors, one run after another. A tensor is seen as
[rows, columns] for that: a vector has one column, and that of experts has their rows one expert
after another. Shapes and splits are not a rule's business: the specs of `llmc.checkpoint` have
them.

Legend: hs head_size, I intermediate_size, E experts.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from llmc.arch import ModelArch
from llmc.checkpoint import TensorSpec
from llmc.dtypes import WEIGHT_DTYPES
from llmc.quant import mxfp4

Ranges = Iterable[tuple[int, int]]
"""Runs [start, stop) of a source's rows, in the order they take in the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Every `step`th of rows [start, stop) of Hugging Face tensor `source` of shape `shape`.

    A `transposed` tensor is stored [columns, rows], each expert by itself. Of a `vector` each
    number is a row, whatever the shape. `plus_one`: 1 is added to every value. With `scales`, the
    tensor of that name, the source has the codes of MXFP4 (llmc.quant.mxfp4).
    """

    source: str
    shape: tuple[int, ...]
    start: int
    stop: int
    transposed: bool = False
    plus_one: bool = False
    step: int = 1
    vector: bool = False
    scales: str | None = None

    @property
    def range(self) -> range:
        """The numbers of the rows."""
        return range(self.start, self.stop, self.step)

    @property
    def count(self) -> int:
        return len(self.range)

    @property
    def tensors(self) -> tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...]:
        """The Hugging Face tensors these are in: name, shape, and dtypes it may have."""
        if self.scales is None:
            return ((self.source, self.shape, WEIGHT_DTYPES),)
        return (
            (self.source, self.shape, ("uint8",)),
            (self.scales, self.shape[:-1], ("uint8",)),
        )

    def part(self, start: int, stop: int) -> "Rows":
        """Return those of these rows that are counted [start, stop) among them."""
        some = self.range[start:stop]
        return replace(self, start=some.start, stop=some.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Module `target` of the checkpoint is made of the Hugging Face modules `sources`.

    "weight" and "bias" follow their module. A target that names a tensor ("mlp.fc.weight") has
    tensors as sources. `ranges` are the rows wanted of the one source; without, all rows of all
    sources in order. With "{expert}" in them, `sources` are repeated for every expert; `stacked`
    ones hold all experts. Such rules are for the experts of a layer, all others for the rest.
    `step`: only every so manieth row of each range is wanted. `mxfp4`: sources are names to which
    "_blocks" and "_scales" are added. `when`: only such models name them so.
    """

    target: str
    sources: tuple[str, ...]
    ranges: Callable[[ModelArch], Ranges] | None = None
    transposed: bool = False
    plus_one: bool = False
    stacked: bool = False
    step: int = 1
    mxfp4: bool = False
    when: Callable[[ModelArch], bool] = lambda arch: True

    @property
    def of_experts(self) -> bool:
        """Whether the target is experts."""
        return self.stacked or any("{expert}" in source for source in self.sources)

    def rows(
        self, spec: TensorSpec, arch: ModelArch, tensor_name: Callable[[str], str]
    ) -> Iterator[Rows]:
        """Yield what the tensor of `spec` is made of; `tensor_name` makes a source a tensor's."""
        experts = 1
        if any("{expert}" in source for source in self.sources):
            assert arch.moe is not None, self.target
            experts = arch.moe.num_experts
        row = spec.shape[-1:] if spec.is_matrix else ()
        heading = spec.shape[: len(spec.shape) - len(row)]
        leading = heading[:-1] if experts == 1 else ()
        runs = [*self.ranges(arch)] if self.ranges else None
        for expert in range(experts):
            lengths = self._lengths(spec, prod(heading) // experts, runs)
            for source, length in zip(self.sources, lengths, strict=True):
                name = tensor_name(source.replace("{expert}", str(expert)))
                for start, stop in runs or [(0, length)]:
                    yield Rows(
                        source=f"{name}_blocks" if self.mxfp4 else name,
                        shape=leading + self._stored(length // prod(leading), row),
                        start=start,
                        stop=stop,
                        transposed=self.transposed and spec.is_matrix,
                        plus_one=self.plus_one,
                        step=self.step,
                        vector=not spec.is_matrix,
                        scales=f"{name}_scales" if self.mxfp4 else None,
                    )

    def _stored(self, rows: int, row: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in which `rows` rows of shape `row` are stored."""
        if self.mxfp4:
            return (rows, row[0] // mxfp4.BLOCK, mxfp4.BLOCK // 2)
        return (*row, rows) if self.transposed else (rows, *row)

    def _lengths(
        self, spec: TensorSpec, total: int, runs: list[tuple[int, int]] | None
    ) -> list[int]:
        """Return how many rows each source must have."""
        if runs is not None:
            assert len(self.sources) == 1, self.target
            count = sum(len(range(start, stop, self.step)) for start, stop in runs)
            assert count == total, (self.target, total, runs)
            return [max(stop for _, stop in runs)]
        if len(self.sources) == 1:
            return [total]
        lengths = [segment.length for segment in spec.segments]
        assert sum(lengths) == total, (self.target, lengths, total)
        return lengths


def rename(
    target: str, source: str, *, when: Callable[[ModelArch], bool] = lambda arch: True
) -> Rule:
    """State that `source` becomes `target` as it is, in models of which `when` holds."""
    return Rule(target=target, sources=(source,), when=when)


def fuse(target: str, *sources: str) -> Rule:
    """State that the rows of `sources`, one after another, become `target`.

    With "{expert}" in their names those of every expert are stacked.
    """
    return Rule(target=target, sources=sources)


def stacked(target: str, source: str, ranges: Callable[[ModelArch], Ranges] | None = None) -> Rule:
    """State that tensor `source` holds every expert's part of tensor `target`, stacked."""
    return Rule(target=target, sources=(source,), ranges=ranges, stacked=True)


def interleaved_experts(module: str, source: str) -> tuple[Rule, ...]:
    """State that stacked `source` has gate and up rows by turns, stored [in, out] or in MXFP4.

    Its bias is called `source`_bias.
    """
    kinds: tuple[dict[str, Any], ...] = ({"transposed": True}, {"mxfp4": True})
    weight = stacked(f"{module}.weight", source, interleaved_halves_of_experts)
    bias = stacked(f"{module}.bias", f"{source}_bias", interleaved_halves_of_experts)
    return tuple(
        replace(rule, step=2) for rule in (*(replace(weight, **kind) for kind in kinds), bias)
    )


def transposed_experts(module: str, source: str) -> tuple[Rule, ...]:
    """State that stacked `source` is stored [in, out] or in MXFP4; its bias is `source`_bias."""
    weight = stacked(f"{module}.weight", source)
    return (
        replace(weight, transposed=True),
        replace(weight, mxfp4=True),
        stacked(f"{module}.bias", f"{source}_bias"),
    )


def transpose(target: str, source: str) -> Rule:
    """State that `source` is stored [in, out], as GPT-2's Conv1D is; its bias is as it is."""
    return Rule(target=target, sources=(source,), transposed=True)


def add_one(target: str, source: str) -> Rule:
    """State that `source` is stored less 1, as the weights of Gemma's norms are."""
    return Rule(target=target, sources=(source,), plus_one=True)


def reorder(target: str, source: str, ranges: Callable[[ModelArch], Ranges]) -> Rule:
    """State that `ranges` of the rows of `source` become `target`."""
    return Rule(target=target, sources=(source,), ranges=ranges)


def interleaved_qkv(arch: ModelArch) -> Ranges:
    """Ranges of q, k and v where the rows of each head are [q, k, v] (GPT-NeoX, BLOOM)."""
    return grouped_qkv(arch, arch.num_attention_heads)


def grouped_qkv(arch: ModelArch, num_groups: int | None = None) -> Ranges:
    """Ranges of q, k and v where each KV head has its q heads, k and v together (Falcon)."""
    groups, hs = num_groups or arch.num_key_value_heads, arch.head_size
    queries = arch.num_attention_heads // groups
    starts = [group * (queries + 2) * hs for group in range(groups)]
    yield from ((start, start + queries * hs) for start in starts)
    for part in (queries, queries + 1):
        yield from ((start + part * hs, start + (part + 1) * hs) for start in starts)


def swapped_halves(arch: ModelArch) -> Ranges:
    """Ranges of [gate; up] rows as TensorRT-LLM's fused mlp.fc has them, [up; gate]."""
    inner = arch.intermediate_size
    return ((inner, 2 * inner), (0, inner))


def swapped_halves_of_experts(arch: ModelArch) -> Ranges:
    """Ranges of stacked experts' [gate; up] rows, as [up; gate] of each."""
    assert arch.moe is not None, arch.architecture
    inner = arch.moe.intermediate_size
    for start in range(0, 2 * inner * arch.moe.num_experts, 2 * inner):
        yield from ((start + inner, start + 2 * inner), (start, start + inner))


def interleaved_halves_of_experts(arch: ModelArch) -> Ranges:
    """Ranges of stacked experts' [gate, up, gate, up, …] rows in steps of 2, as [up; gate]."""
    assert arch.moe is not None, arch.architecture
    rows = 2 * arch.moe.intermediate_size
    for start in range(0, rows * arch.moe.num_experts, rows):
        yield from ((start + 1, start + rows), (start, start + rows))
