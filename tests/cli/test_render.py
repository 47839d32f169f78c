"""Numbers a person reads, and progress that never touches stdout."""

import pytest

from llmc.cli.render import ConsoleProgress, format_bytes, print_json, print_section


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 42, "20480.0 GiB"),
    ],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


def test_progress_is_one_line_of_stderr_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ConsoleProgress() as progress:
        progress.start("pack", 4096)
        progress.advance(4096)
        progress.finish()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pack: 4.0 KiB in ")


def test_bar_goes_away_with_an_exception(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    progress = ConsoleProgress()
    with pytest.raises(KeyboardInterrupt), progress:
        progress.start("pack", 10)
        progress.advance(5)
        assert progress._bar is not None
        raise KeyboardInterrupt
    assert progress._bar is None
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "pack" in captured.err
    # The cursor is shown again.
    assert captured.err.rindex("\x1b[?25h") > captured.err.rindex("\x1b[?25l")


def test_results_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1]})
    print_section("part", {"tp": 2, "quantized": False, "excluded": (), "name": None})
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith('{\n  "a": [\n    1\n  ]\n}\n')
    words = captured.out.split("part", 1)[1].split()
    assert words == ["tp", "2", "quantized", "no", "excluded", "none", "name", "none"]
