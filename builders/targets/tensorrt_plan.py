"""Reads what a plan of TensorRT for RTX will launch: evidence, on a machine that cannot run it.

Owns the reading alone; builders/targets/tensorrt_evidence.py says what must be found. The format is
undocumented. What is read here was found in plans of the versions in READABLE: chunk table, and in
the chunk of the engine one program in plain text for each profile, with its tensors' types and its
launches in order. A plan of another version, or one that does not look so, is not readable; nothing
is guessed.
"""

import mmap
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llmc.errors import CheckpointError

READABLE = ((1, 7),)
"""Major and minor version of TensorRT for RTX."""

_MAGIC = b"vtrt"
_VERSION_AT, _TABLE_AT = 0x18, 0x40
_ENGINE, _WEIGHTS = b"NGNE", b"THGW"
_PROGRAM = b"header {\n"
_LAUNCH = re.compile(r'^(function|fully_connected|runtime_fusion|comm_\w+)=\{ name="?([^"\s]+)')
_TYPED = re.compile(r'name="([^"]*)"[^\n]* type=(\w+) \}')

_CASTS = re.compile(r"Cast\w*Fc(?![a-z])")

Kind = Literal["attention", "gemm", "collective", "other"]

NARROW = ("fp4_e2m1", "int4", "int8", "fp8_e4m3")
WIDE = ("half", "bf16", "float")
"""Element types as programs spell them; the first of NARROW counts, as scales of FP4 are e4m3."""


class NotReadableError(Exception):
    """Says why nothing can be said about a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel. `types` are the element types of its inputs that are numbers, in order; `made`,
    those of its outputs."""

    kind: Kind
    kernel: str
    types: tuple[str, ...]
    made: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What one profile launches."""

    accelerators: tuple[str, ...]
    launches: tuple[Launch, ...]

    def count(self, kind: Kind) -> Counter[str]:
        """Count launches of a kind: kernels of attention, types of inputs of GEMMs."""
        return Counter(_label(launch) for launch in self.launches if launch.kind == kind)

    @property
    def fp8_attentions(self) -> int:
        """Return how many attention kernels read queries, keys and values in FP8."""
        return sum(
            launch.kind == "attention" and launch.types[:3] == ("fp8_e4m3",) * 3
            for launch in self.launches
        )

    @property
    def dequantizes(self) -> tuple[str, ...]:
        """Kernels which only widen numbers that a product should have taken narrow."""
        return tuple(
            launch.kernel
            for launch in self.launches
            if launch.kind == "other"
            and set(launch.types) & set(NARROW)
            # One that lays scales out anew makes narrow numbers of narrow numbers.
            and set(launch.made) & set(WIDE)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan's version, the sizes of its parts, and its programs in the order of the profiles."""

    version: tuple[int, ...]
    engine_bytes: int
    weights_bytes: int
    programs: tuple[Program, ...]


def read_plan(path: Path) -> Plan:
    """Read a plan's programs; its weights are not touched.

    Raises: NotReadableError for a version or form that is not known; CheckpointError for a file
    that is no plan.
    """
    with path.open("rb") as file:
        head = file.read(_TABLE_AT + 48)
        if len(head) < _TABLE_AT + 48 or head[:4] != _MAGIC:
            raise CheckpointError(f"{path}: not a TensorRT for RTX plan")
        version = tuple(head[_VERSION_AT : _VERSION_AT + 4])
        if version[:2] not in READABLE:
            raise NotReadableError(
                f"version {'.'.join(map(str, version))} of the plan is not known"
            )
        chunks = dict(_chunks(head))
        if _ENGINE not in chunks:
            raise NotReadableError("it has no chunk of an engine where one is expected")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            start, size = chunks[_ENGINE]
            programs = tuple(_programs(data, start, min(start + size, len(data))))
    if not programs:
        raise NotReadableError("no program with the inputs of a decoder is in it")
    return Plan(
        version=version,
        engine_bytes=size,
        weights_bytes=chunks.get(_WEIGHTS, (0, 0))[1],
        programs=programs,
    )


def _chunks(head: bytes) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield tag → (offset, size) of the table's two entries: tag, nothing, two 64-bit numbers."""
    for start in (_TABLE_AT, _TABLE_AT + 24):
        entry = head[start : start + 24]
        yield (
            entry[:4],
            (int.from_bytes(entry[8:16], "little"), int.from_bytes(entry[16:], "little")),
        )


def _programs(data: mmap.mmap, start: int, stop: int) -> Iterator[Program]:
    """Yield the programs which read token_ids; others transform a weight for a refit."""
    place = data.find(_PROGRAM, start, stop)
    while place != -1:
        end = data.find(b"\0", place, stop)
        text = data[place : end if end != -1 else stop].decode("utf-8", errors="replace")
        sections = text.split("\n}\n")
        if "token_ids" in sections[0]:
            yield _program(text, sections)
        place = data.find(_PROGRAM, place + len(text.encode()), stop)


def _program(text: str, sections: list[str]) -> Program:
    accelerators = re.search(r"accelerators=\{([^}]*)\}", sections[0])
    bodies = [section for section in sections if section.lstrip().startswith("main {")]
    if accelerators is None or len(bodies) != 1:
        raise NotReadableError("its program is not laid out as expected")
    types = dict(_TYPED.findall(text))
    launches = [_launch(line.strip(), types) for line in bodies[0].splitlines()]
    return Program(
        accelerators=tuple(accelerators[1].split()),
        launches=tuple(launch for launch in launches if launch is not None),
    )


def _launch(line: str, types: dict[str, str]) -> Launch | None:
    matched = _LAUNCH.match(line)
    if matched is None:
        return None
    form, kernel = matched[1], matched[2]
    if form.startswith("comm_"):
        kind: Kind = "collective"
        kernel = form
    elif "_mha_" in kernel:
        kind = "attention"
    elif form == "fully_connected" or re.search(r"Fc(?![a-z])", kernel):
        kind = "gemm"
    else:
        kind = "other"
    return Launch(
        kind=kind,
        kernel=kernel,
        types=_numbers(line, "input", types),
        made=_numbers(line, "output", types),
    )


def _numbers(line: str, side: str, types: dict[str, str]) -> tuple[str, ...]:
    """Return the element types of a launch's inputs or outputs that are numbers."""
    listed = re.search(rf" {side}(?:_args)?=\{{([^}}]*)\}}", line)
    names = re.findall(r'"([^"]*)"', listed[1]) if listed else []
    found = (types.get(name, "") for name in names)
    return tuple(one for one in found if one in (*NARROW, *WIDE))


def _label(launch: Launch) -> str:
    """Return an attention's or collective's kernel, and of a GEMM what it multiplies."""
    if launch.kind != "gemm":
        return launch.kernel
    wide = next((one for one in launch.types if one in WIDE), "unknown")
    narrow = next((one for one in NARROW if one in launch.types), wide)
    # A product that casts both before it multiplies does so in 16 bits.
    both = narrow == wide or launch.types.count(narrow) > 1 and not _CASTS.search(launch.kernel)
    return f"{narrow if both else wide} x {narrow}"
