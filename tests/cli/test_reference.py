"""docs/cli.md is what the commands say now."""

from pathlib import Path

from llmc.cli import COMMANDS
from llmc.cli.reference import render_reference

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_reference(), "run `make docs`"


def test_page_has_every_command_with_an_example() -> None:
    text = render_reference()
    for command in COMMANDS:
        section = text.split(f"\n## llmc {command}\n", 1)[1].split("\n## ", 1)[0]
        assert f"llmc {command}" in section.split("```sh", 1)[1]
