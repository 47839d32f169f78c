"""A stage runs when it must; two builds do not share a directory; edited tools are other tools."""

import subprocess
import sys
from pathlib import Path

import pytest

import llmc
from llmc.errors import BuildError
from llmc.stages import exclusive, run_stage, tool_version


def run(final: Path, *, force: bool = False) -> bool:
    def build(staging: Path) -> None:
        (staging / "file").write_text("made")

    result = run_stage(
        final,
        build,
        stage="engine",
        inputs={},
        recipe={},
        tools={},
        force=force,
    )
    return result.cached


def test_runs_once_and_again_when_forced(tmp_path: Path) -> None:
    assert [run(tmp_path / "a"), run(tmp_path / "a"), run(tmp_path / "a", force=True)] == [
        *(False, True, False)
    ]
    (tmp_path / "a" / "file").write_text("mode")
    assert not run(tmp_path / "a")
    assert (tmp_path / "a" / "file").read_text() == "made"


@pytest.mark.parametrize("kind", ["file", "link", "directory", "empty"])
def test_only_what_a_stage_made_is_replaced(tmp_path: Path, kind: str) -> None:
    final = tmp_path / "a"
    if kind == "file":
        final.write_text("mine")
    elif kind == "link":
        final.symlink_to(tmp_path / "elsewhere")
    else:
        final.mkdir()
        if kind == "directory":
            (final / "mine").write_text("mine")
    if kind == "empty":
        assert not run(final)
    else:
        with pytest.raises(BuildError, match="was not made by llmc"):
            run(final)


def test_second_build_of_a_directory_is_refused(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from llmc.stages import exclusive\n"
        "with exclusive(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "out")],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BuildError, match="another llmc"), exclusive(tmp_path / "out"):
            pass
        other.stdin.close()
        other.wait(timeout=30)
    with exclusive(tmp_path / "out"):
        pass


def test_directory_that_cannot_be_made_is_a_build_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="file"), exclusive(tmp_path / "file" / "out"):
        pass


def test_tool_version_names_the_sources() -> None:
    version = tool_version("builders", "plugins")
    assert version.startswith(f"{llmc.__version__}+")
    assert version != tool_version("model_repo")


def test_a_refused_build_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(BuildError), exclusive(tmp_path / "new"):
        raise BuildError("refused")
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with exclusive(tmp_path / "old"):
        pass
    assert (tmp_path / "old").exists()
