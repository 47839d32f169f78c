"""The native library's binding: choice of instruction set, errors that say what to do, threads."""

from pathlib import Path

import numpy as np
import pytest

from llmc.errors import ToolchainError, UnsupportedError
from llmc.plugins import native
from tests.plugins.kernels_cpu import INSTRUCTION_SETS, Linear


def test_best_is_first_and_never_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(native.ISA_VARIABLE, raising=False)
    chosen = native.choose_instruction_set()
    assert chosen == INSTRUCTION_SETS[0]
    assert not chosen.startswith("emulated")
    assert native.instruction_sets()["portable"]


def test_environment_variable_forces_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.ISA_VARIABLE, "portable")
    assert native.choose_instruction_set() == "portable"
    team = native.Team(threads=1)
    assert team.instruction_set == "portable"
    team.close()


def test_unknown_instruction_set_names_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.ISA_VARIABLE, "avx1024")
    with pytest.raises(UnsupportedError, match=r"'avx1024', expected one of .*portable"):
        native.choose_instruction_set()


def test_instruction_set_this_cpu_lacks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "instruction_sets", lambda: {"amx": False, "portable": True})
    with pytest.raises(UnsupportedError, match="does not have amx") as error:
        native.choose_instruction_set("amx")
    assert "portable" in error.value.hint
    assert native.choose_instruction_set() == "portable"


def test_missing_library_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "libllmc_cpu.so")
    native.library.cache_clear()
    try:
        with pytest.raises(ToolchainError, match="not found") as error:
            native.library()
        assert "pip install" in error.value.hint
        native.LIBRARY.write_bytes(b"not a library")
        with pytest.raises(ToolchainError, match=r"libllmc_cpu\.so"):
            native.library()
    finally:
        native.library.cache_clear()


@pytest.mark.parametrize("threads", (1, 2, 3, 7))
def test_threads_do_not_change_results(threads: int) -> None:
    """More threads than cores too, as when a container is given a share of one."""
    weight = np.random.default_rng(0).standard_normal((200, 64)).astype(np.float32)
    linear = Linear(weight, "bfloat16")
    x = np.random.default_rng(1).standard_normal((20, 64)).astype(np.float32)
    expected = linear("portable", x)
    op = native.NativeOp(kind=2, type=2, input=0, input2=-1, output=1)
    op.dim[:3] = (64, 200, linear.num_panels)
    op.tensor[0] = linear.panels.ctypes.data
    team = native.Team(threads=threads, instruction_set="portable")
    found = np.empty_like(expected)
    for _ in range(50):
        found[:] = np.nan
        batch = native.NativeBatch(num_tokens=20)
        team.run([op, op], batch, [x.ctypes.data, found.ctypes.data])
        np.testing.assert_array_equal(found, expected)
    team.close()
    team.close()
