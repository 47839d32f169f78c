"""The package as users get it: sdist, the wheel built from it, and an editable install."""

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import llmc
from tests.builders.tiny_hf import write_model

ROOT = Path(__file__).parents[1]
ROOMS = ("builders", "cli", "model_repo", "plugins", "recipes")
OBJECTS = '"build/objects"'
SUFFIXES = (".py", ".yaml", ".typed")

pytestmark = pytest.mark.slow


def files_of_the_clone() -> list[str]:
    """What git has or would add, so that leftovers of a build in the clone cannot help."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).exists()]


def packed_files() -> set[str]:
    """Where every source of the rooms and of llmc must lie in a wheel."""
    return {
        name if name.startswith("llmc/") else f"llmc/{name}"
        for name in files_of_the_clone()
        if name.split("/")[0] in (*ROOMS, "llmc") and name.endswith(SUFFIXES)
    }


def run(*command: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(cwd), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clone = tmp_path_factory.mktemp("clone")
    for name in files_of_the_clone():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clone / name, follow_symlinks=False)
    # Kernels compile for a minute: use the objects of the clone under test, and add to them.
    project = clone / "pyproject.toml"
    text = project.read_text()
    assert OBJECTS in text
    project.write_text(text.replace(OBJECTS, f'"{ROOT / "build" / "objects"}"'))
    return clone


@pytest.fixture(scope="module")
def dist(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist from the clone, then the wheel from the sdist alone."""
    dist = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, clone, cwd=dist)
    return dist


def test_sdist_holds_sources_and_no_links(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        members = {member.name.split("/", 1)[-1]: member for member in archive.getmembers()}
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]
    assert packed_files() <= members.keys()
    assert {"setup.py", "pyproject.toml", "README.md", "plugins/csrc/abi.h"} <= members.keys()
    assert not [name for name in members if name.endswith((".so", ".o", ".pyc"))]


def test_wheel_holds_the_package_and_nothing_else(dist: Path) -> None:
    wheel = next(dist.glob("*.whl"))
    assert wheel.name.startswith(f"llmc-{llmc.__version__}-py3-none-")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert packed_files() <= names
    assert {name.split("/")[0] for name in names} == {
        *("llmc", f"llmc-{llmc.__version__}.dist-info")
    }
    assert "llmc/plugins/libllmc_cpu.so" in names
    assert not [name for name in names if name.endswith((".o", ".pyc"))]


def test_installed_wheel_builds_an_engine(dist: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site)
    run(*pip, next(dist.glob("*.whl")), cwd=tmp_path)
    version = run(
        sys.executable, "-m", "llmc.cli.main", "--version", cwd=tmp_path, PYTHONPATH=str(site)
    )
    assert version == f"llmc {llmc.__version__}\n"
    model = write_model(tmp_path / "model")
    run(
        *(sys.executable, "-m", "llmc.cli.main", "build", model, "-o", "out", "--quant", "W8A16"),
        cwd=tmp_path,
        PYTHONPATH=str(site),
    )
    assert (tmp_path / "out" / "engine" / "rank0.engine").is_file()
    assert (tmp_path / "out" / "model_repo" / "tensorrt_llm" / "1" / "model.py").is_file()
    where = run(
        *(sys.executable, "-c", "import llmc.plugins.native as n; n.library(); print(n.__file__)"),
        cwd=tmp_path,
        PYTHONPATH=str(site),
    )
    assert where.startswith(str(site))


def test_editable_install_uses_the_clone(clone: Path, tmp_path: Path) -> None:
    """The new environment sees this one's packages, but llmc only by the editable install."""
    environment = tmp_path / "venv"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    purelib = Path(
        run(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path
        ).strip()
    )
    (purelib / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps")
    run(*pip, "--no-build-isolation", "--editable", clone, cwd=tmp_path)
    assert (
        run(environment / "bin" / "llmc", "--version", cwd=tmp_path) == f"llmc {llmc.__version__}\n"
    )
    (clone / "builders" / "added.py").write_text("VALUE = 7\n")
    script = (
        "import importlib.util as u\n"
        "from llmc.builders import added\n"
        "from llmc.plugins import native\n"
        "native.library()\n"
        "print(added.VALUE, [name for name in {rooms!r} if u.find_spec(name)])\n"
    )
    seen = run(python, "-c", script.format(rooms=ROOMS), cwd=tmp_path)
    (clone / "builders" / "added.py").unlink()
    assert seen == "7 []\n"
