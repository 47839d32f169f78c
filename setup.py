"""Builds the CPU kernels into one C-ABI shared library inside the package.

Each kernel source is compiled once per instruction set, into a namespace of its own.
The library includes neither Python's nor torch's headers, so it serves any Python: the wheel is
tagged py3-none-<platform>.
"""

import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

LIBRARY = "llmc.plugins.libllmc_cpu"
SHARED = ("dispatch", "team")
COMMON_FLAGS = (
    "-std=c++17",
    "-O3",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-fno-trapping-math",
    # A product and a sum are fused where the source says fma() and nowhere else: two instances of
    # one kernel must round alike, or results would depend on the batch.
    "-ffp-contract=off",
    "-Wall",
    "-Wno-psabi",
    "-Wno-maybe-uninitialized",  # gcc 12 warns inside its own avx512 header
    "-pthread",
)
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
# name -> (namespace, compiler flags, vector width in floats, AMX: 0 none, 1 the unit, 2 emulated)
X86_VARIANTS: dict[str, tuple[str, tuple[str, ...], int, int]] = {
    "amx": ("llmc_amx", (*AVX512, "-mamx-tile", "-mamx-bf16", "-mamx-int8"), 16, 1),
    "avx512": ("llmc_avx512", AVX512, 16, 0),
    "avx2": ("llmc_avx2", AVX2, 8, 0),
    # For tests only; -O1 halves the time the compiler spends splitting their wide vectors.
    "emulated-avx512": ("llmc_emulated_avx512", (*AVX2, "-O1"), 16, 0),
    "emulated-amx": ("llmc_emulated_amx", (*AVX2, "-O1"), 16, 2),
}
PORTABLE: dict[str, tuple[str, tuple[str, ...], int, int]] = {
    "portable": ("llmc_portable", (), 4, 0),
}


def variants() -> dict[str, tuple[str, tuple[str, ...], int, int]]:
    """Return the instruction sets this machine's compiler builds kernels for."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return {**X86_VARIANTS, **PORTABLE}
    return PORTABLE


class BuildKernels(build_ext):
    """Compiles every (source, instruction set) pair, in parallel, and links them."""

    def finalize_options(self) -> None:
        """Keep objects where pyproject.toml says: an editable build would forget them."""
        super().finalize_options()
        kept = self.distribution.get_option_dict("build_ext").get("build_temp")
        if kept is not None:
            self.build_temp = kept[1]

    def get_ext_filename(self, fullname: str) -> str:
        """Name the library without the interpreter's tag; `fullname` is dotted or its last part."""
        return str(Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def build_extension(self, ext: Extension) -> None:
        headers = glob("plugins/csrc/*.h") + glob("plugins/*/csrc/*.h")
        newest = max(Path(path).stat().st_mtime for path in [*headers, "setup.py"])
        jobs: list[tuple[str, str, list[str]]] = []
        for source in ext.sources:
            if Path(source).stem in SHARED:
                jobs.append((source, "shared", []))
                continue
            for name, (namespace, flags, width, amx) in variants().items():
                macros = [f"-DLLMC_NS={namespace}", f"-DLLMC_W={width}", f"-DLLMC_AMX={amx}"]
                jobs.append((source, name, [*flags, *macros]))
        with ThreadPoolExecutor(self.parallel or 2) as pool:
            objects = list(pool.map(lambda job: self._compile(*job, newest), jobs))
        output = Path(self.get_ext_fullpath(ext.name))
        output.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(
            objects, str(output), extra_postargs=["-pthread", "-Wl,-z,defs"], target_lang="c++"
        )

    def _compile(self, source: str, variant: str, flags: list[str], newest: float) -> str:
        """Compile one pair unless its object is newer than source, headers and this file."""
        built = Path(self.build_temp) / variant / Path(source).with_suffix(".o")
        fresh = max(newest, Path(source).stat().st_mtime)
        if not self.force and built.exists() and built.stat().st_mtime > fresh:
            return str(built)
        self.compiler.compile(
            [source],
            output_dir=str(built.parents[len(Path(source).parts) - 1]),
            include_dirs=["plugins/csrc"],
            extra_preargs=[*COMMON_FLAGS, *flags],
        )
        return str(built)


class AnyPythonWheel(bdist_wheel):
    """Tags the wheel for the platform but for no particular Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


def main() -> None:
    if sys.platform == "win32":
        raise SystemExit("error: llmc's kernels build on Linux and macOS; on Windows use WSL")
    options: dict[str, Any] = {"build_ext": BuildKernels, "bdist_wheel": AnyPythonWheel}
    sources = sorted(glob("plugins/csrc/*.cpp") + glob("plugins/*/csrc/*.cpp"))
    setup(ext_modules=[Extension(LIBRARY, sources=sources)], cmdclass=options)


main()
