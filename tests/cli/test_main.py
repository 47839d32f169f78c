"""Global options, exit codes, and errors that say what to do."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import llmc as package
from llmc.cli import COMMANDS, main
from tests.cli.run import Done, llmc

Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return partial(llmc, capsys=capsys, monkeypatch=monkeypatch)


def test_version(run: Run) -> None:
    assert run("--version") == Done(code=0, stdout=f"llmc {package.__version__}\n", stderr="")


def test_unknown_command_suggests_the_nearest(run: Run) -> None:
    done = run("biuld")
    assert (done.code, done.stdout) == (2, "")
    assert "Did you mean 'build'?" in done.stderr


def test_users_mistake_is_two_lines_and_its_exit_code(run: Run, tmp_path: Path) -> None:
    done = run("inspect", tmp_path / "absent")
    assert done.code == 3
    assert done.stdout == ""
    error, hint = done.stderr.splitlines()
    assert error.startswith(f"error: {tmp_path}/absent: no config.json")
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("place", [0, 1])
def test_debug_shows_the_traceback(run: Run, tmp_path: Path, place: int) -> None:
    from llmc.errors import CheckpointError

    arguments: list[object] = ["inspect", tmp_path / "absent"]
    arguments.insert(place, "--debug")
    with pytest.raises(CheckpointError):
        run(*arguments)


def test_bug_is_not_dressed_up(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(directory: Path, *, verify: bool) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("llmc.cli.inspect.describe", broken)
    with pytest.raises(ZeroDivisionError):
        run("inspect", tmp_path)


def test_unknown_log_level_of_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMC_LOG", "loud")
    done = run("inspect", "x")
    assert done.code == 2
    assert "error: LLMC_LOG: 'loud', expected one of debug, info, warning, error" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from llmc.cli.main import app; app(prog_name='llmc')"],
        cwd=Path(__file__).parents[2],
        env={"_LLMC_COMPLETE": f"source_{shell}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "llmc" in done.stdout


def complete(*words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", "from llmc.cli.main import app; app(prog_name='llmc')"],
        cwd=Path(__file__).parents[2],
        env={
            "_LLMC_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("llmc", *words)),
            "COMP_CWORD": str(len(words)),
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
    )
    return done.stdout.split()


def test_completion_knows_commands_and_their_options() -> None:
    assert complete("in") == ["inspect"]
    assert complete("build", "--kv") == ["--kv-cache"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    """Every parameter has a help text, the docstring an example, and the summary is the table's."""
    loaded = main.load_command(command)
    assert loaded.name == command.split()[-1]
    assert f"llmc {command}" in loaded.help
    for parameter in loaded.params:
        assert parameter.help, f"{command}: {parameter.name} has no help"


def test_paragraphs_are_joined_and_examples_kept() -> None:
    text = "First line\n    second.\n\n      llmc a\n      llmc b\n\n    Third."
    assert main._reflow(text) == "First line second.\n\n  llmc a\n  llmc b\n\nThird."
