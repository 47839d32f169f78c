"""Runs `llmc` in this process, as the console command would."""

from dataclasses import dataclass

import pytest

from llmc.cli import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a run ended."""

    code: int
    stdout: str
    stderr: str


def llmc(
    *arguments: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Done:
    """Run the command line and return exit code and output; a bug's exception passes through."""
    monkeypatch.setattr("sys.argv", ["llmc", *map(str, arguments)])
    monkeypatch.setattr(main, "_debug", False)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    capsys.readouterr()
    code = 0
    try:
        main.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    captured = capsys.readouterr()
    return Done(code=code, stdout=captured.out, stderr=captured.err)
