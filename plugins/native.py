"""The compiled CPU kernels as Python sees them: one shared library, two C structs, a thread team.

Owns finding and checking the library and choosing the instruction set. What an op's fields mean is
written above each kernel (plugins/<op>/csrc); plugins/cpu_program.py makes them from a program.
"""

import ctypes
import logging
import os
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

from llmc.errors import ToolchainError, UnsupportedError

log = logging.getLogger(__name__)

LIBRARY = Path(__file__).parent / "libllmc_cpu.so"
ABI_VERSION = 3
QUERY_TILE = 16
"""Tokens of one sequence that attention takes together (LLMC_QUERY_TILE)."""
SCRATCH_FLOATS = 1 << 20
"""Private floats of a thread (kernel.h); what limits in_features and head sizes."""
ISA_VARIABLE = "LLMC_CPU_ISA"
"""Environment variable that forces an instruction set, for tests and comparisons."""

BUILD_HINT = "build it with `pip install -e .` (or `python setup.py build_ext --inplace`)"


class NativeOp(ctypes.Structure):
    """LlmcOp of plugins/csrc/abi.h."""

    _fields_ = (
        ("kind", c_int32),
        ("type", c_int32),
        ("input", c_int32),
        ("input2", c_int32),
        ("output", c_int32),
        ("flags", c_int32),
        ("dim", c_int64 * 10),
        ("param", c_float * 4),
        ("tensor", c_void_p * 4),
    )


class NativeBatch(ctypes.Structure):
    """LlmcBatch of plugins/csrc/abi.h."""

    _fields_ = (
        ("num_tokens", c_int64),
        ("num_sequences", c_int64),
        ("num_logits", c_int64),
        ("max_blocks", c_int64),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("query_start", c_void_p),
        ("context_lens", c_void_p),
        ("block_tables", c_void_p),
        ("logits_rows", c_void_p),
        ("prompt_lens", c_void_p),
        ("token_sequence", c_void_p),
        ("num_tiles", c_int64),
        ("tile_start", c_void_p),
        ("tile_sequence", c_void_p),
        ("op_seconds", POINTER(c_double)),
    )


@cache
def library() -> ctypes.CDLL:
    """Load the kernels.

    Raises: ToolchainError when the library is missing, does not load, or is from another version.
    """
    if not LIBRARY.exists():
        raise ToolchainError(f"{LIBRARY}: not found, expected the CPU kernels", hint=BUILD_HINT)
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
        loaded.llmc_isa_name.restype = c_char_p
        loaded.llmc_isa_name.argtypes = (c_int,)
        loaded.llmc_isa_supported.argtypes = (c_int,)
        loaded.llmc_sizeof_op.restype = c_int64
        loaded.llmc_sizeof_batch.restype = c_int64
        loaded.llmc_team_create.restype = c_void_p
        loaded.llmc_team_create.argtypes = (c_int, c_int)
        loaded.llmc_team_destroy.restype = None
        loaded.llmc_team_destroy.argtypes = (c_void_p,)
        loaded.llmc_team_run.restype = None
        loaded.llmc_team_run.argtypes = (
            c_void_p,
            POINTER(NativeOp),
            c_int,
            POINTER(NativeBatch),
            POINTER(c_void_p),
        )
    except (OSError, AttributeError) as error:
        raise ToolchainError(f"{LIBRARY}: {error}", hint=BUILD_HINT) from error
    version = loaded.llmc_abi_version()
    if version != ABI_VERSION:
        raise ToolchainError(
            f"{LIBRARY}: version {version} of the kernels, expected {ABI_VERSION}", hint=BUILD_HINT
        )
    assert loaded.llmc_sizeof_op() == ctypes.sizeof(NativeOp)
    assert loaded.llmc_sizeof_batch() == ctypes.sizeof(NativeBatch)
    return loaded


@cache
def instruction_sets() -> dict[str, bool]:
    """Return every instruction set the library has kernels for, best first, and whether this CPU
    has it. The emulated ones run the code of a larger CPU on a smaller one, for tests, slowly."""
    kernels = library()
    return {
        kernels.llmc_isa_name(index).decode(): bool(kernels.llmc_isa_supported(index))
        for index in range(kernels.llmc_isa_count())
    }


def choose_instruction_set(forced: str | None = None) -> str:
    """Return `forced`, else what LLMC_CPU_ISA says, else the best this CPU has.

    Raises: UnsupportedError when the one asked for is unknown or this CPU lacks it.
    """
    known = instruction_sets()
    wanted = forced or os.environ.get(ISA_VARIABLE)
    if wanted is None:
        return next(name for name, supported in known.items() if supported)
    usable = ", ".join(name for name, supported in known.items() if supported)
    if wanted not in known:
        raise UnsupportedError(
            f"{ISA_VARIABLE}: {wanted!r}, expected one of {', '.join(known)}",
            hint=f"this CPU runs {usable}",
        )
    if not known[wanted]:
        raise UnsupportedError(
            f"{ISA_VARIABLE}: this CPU does not have {wanted}, which was asked for",
            hint=f"it runs {usable}; unset {ISA_VARIABLE} to take the best",
        )
    return wanted


def available_cores() -> int:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


class Team:
    """Threads that run programs of ops together with the calling one, one program at a time."""

    def __init__(self, *, threads: int | None = None, instruction_set: str | None = None) -> None:
        """Start the threads (default: one per core this process may use).

        Raises: ToolchainError without the library or threads, UnsupportedError as
        `choose_instruction_set`.
        """
        self.instruction_set = choose_instruction_set(instruction_set)
        self.threads = threads or available_cores()
        index = list(instruction_sets()).index(self.instruction_set)
        self._handle = library().llmc_team_create(self.threads, index)
        if not self._handle:
            raise ToolchainError(
                f"cpu: could not start {self.threads} threads", hint="raise `ulimit -u`"
            )

    def run(
        self,
        ops: Sequence[NativeOp] | ctypes.Array[NativeOp],
        batch: NativeBatch,
        buffers: Sequence[int],
    ) -> None:
        """Run `ops` in order; `buffers` are the addresses op fields index. Releases the GIL."""
        assert self._handle, "the team is closed"
        array = ops if isinstance(ops, ctypes.Array) else (NativeOp * len(ops))(*ops)
        addresses = (c_void_p * len(buffers))(*buffers)
        library().llmc_team_run(self._handle, array, len(array), batch, addresses)

    def close(self) -> None:
        """End the threads; safe to call twice."""
        if self._handle:
            library().llmc_team_destroy(self._handle)
            self._handle = None
