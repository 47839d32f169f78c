"""Where the tensors of a checkpoint come from, as data: rules of a family, and the rows they name.

A checkpoint tensor is rows of Hugging Face tensors, one run after another. A tensor is seen as
[rows, columns] for that: a vector has one column, and of three dimensions (experts) the first two
count the rows. Shapes and splits are not a rule's business: the specs of `llmc.checkpoint` have
them.

Legend: hs head_size, I intermediate_size, E experts.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod

from llmc.arch import ModelArch
from llmc.checkpoint import TensorSpec

Ranges = Iterable[tuple[int, int]]
"""Runs [start, stop) of a source's rows, in the order they take in the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows [start, stop) of Hugging Face tensor `source`, whose shape must be `shape`.

    A `transposed` tensor [columns, rows] is stored the other way round. `plus_one`: 1 is added to
    every value.
    """

    source: str
    shape: tuple[int, ...]
    start: int
    stop: int
    transposed: bool = False
    plus_one: bool = False

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Module `target` of the checkpoint is made of the Hugging Face modules `sources`.

    "weight" and "bias" follow their module. A target that names a tensor ("mlp.fc.weight") has
    tensors as sources. `ranges` are the rows wanted of the one source; without, all rows of all
    sources in order. With "{expert}" in them, `sources` are repeated for every expert; `stacked`
    ones hold all experts. Such rules are for the experts of a layer, all others for the rest.
    """

    target: str
    sources: tuple[str, ...]
    ranges: Callable[[ModelArch], Ranges] | None = None
    transposed: bool = False
    plus_one: bool = False
    stacked: bool = False

    @property
    def of_experts(self) -> bool:
        """Whether the target is experts."""
        return self.stacked or any("{expert}" in source for source in self.sources)

    @property
    def keeps_rows(self) -> bool:
        """Whether the target is the whole of its sources, one after another, as they are."""
        return self.ranges is None and not self.transposed and not self.plus_one

    def rows(
        self, spec: TensorSpec, arch: ModelArch, tensor_name: Callable[[str], str]
    ) -> Iterator[Rows]:
        """Yield what the tensor of `spec` is made of; `tensor_name` makes a source a tensor's."""
        experts = 1
        if any("{expert}" in source for source in self.sources):
            assert arch.moe is not None, self.target
            experts = arch.moe.num_experts
        transposed = self.transposed and len(spec.shape) > 1
        leading = spec.shape[:-2] if experts == 1 else ()
        total = prod(spec.shape[:-1]) if len(spec.shape) > 1 else spec.shape[0]
        runs = [*self.ranges(arch)] if self.ranges else None
        for expert in range(experts):
            lengths = self._lengths(spec, total // experts, runs)
            for source, length in zip(self.sources, lengths, strict=True):
                matrix: tuple[int, ...] = (length // prod(leading), *spec.shape[1:][-1:])
                for start, stop in runs or [(0, length)]:
                    yield Rows(
                        source=tensor_name(source.replace("{expert}", str(expert))),
                        shape=(*leading, *(reversed(matrix) if transposed else matrix)),
                        start=start,
                        stop=stop,
                        transposed=transposed,
                        plus_one=self.plus_one,
                    )

    def _lengths(
        self, spec: TensorSpec, total: int, runs: list[tuple[int, int]] | None
    ) -> list[int]:
        """Return how many rows each source must have."""
        if runs is not None:
            assert len(self.sources) == 1, self.target
            assert sum(stop - start for start, stop in runs) == total, (self.target, total, runs)
            return [max(stop for _, stop in runs)]
        if len(self.sources) == 1:
            return [total]
        lengths = [segment.length for segment in spec.segments]
        assert sum(lengths) == total, (self.target, lengths, total)
        return lengths


def rename(target: str, source: str) -> Rule:
    """State that `source` becomes `target` as it is."""
    return Rule(target=target, sources=(source,))


def fuse(target: str, *sources: str) -> Rule:
    """State that the rows of `sources`, one after another, become `target`.

    With "{expert}" in their names those of every expert are stacked.
    """
    return Rule(target=target, sources=sources)


def stacked(target: str, source: str, ranges: Callable[[ModelArch], Ranges] | None = None) -> Rule:
    """State that tensor `source` holds every expert's part of tensor `target`, stacked."""
    return Rule(target=target, sources=(source,), ranges=ranges, stacked=True)


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
