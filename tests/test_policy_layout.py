"""The five rooms are links into the package, and nothing else is importable under their names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("builders", "cli", "model_repo", "plugins", "recipes")


def test_rooms_are_exactly_five_relative_links() -> None:
    links = {
        path.name: os.readlink(path) for path in (ROOT / "llmc").iterdir() if path.is_symlink()
    }
    assert links == {room: f"../{room}" for room in ROOMS}


@pytest.mark.parametrize("room", ROOMS)
def test_bare_name_is_not_importable_elsewhere(room: str, tmp_path: Path) -> None:
    script = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({room!r}) is not None)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env={})
    assert done.returncode == 0, f"{room} is importable outside the clone"


def test_no_absolute_link_in_the_repository() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    links = [line.split("\t")[1] for line in tracked.splitlines() if line.startswith("120000")]
    assert sorted(links) == sorted(f"llmc/{room}" for room in ROOMS)
