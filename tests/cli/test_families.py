"""`llmc families` and the page made of it."""

import json
from pathlib import Path

import pytest

from llmc.builders.families import FAMILIES
from llmc.builders.families.support import COLUMNS
from llmc.cli.families import render_page
from llmc.quant import FORMATS
from llmc.targets import TARGETS
from tests.cli.run import llmc

PAGE = Path(__file__).parents[2] / "docs" / "families.md"


def test_page_is_current() -> None:
    pytest.importorskip("tensorrt_rtx_bindings", reason="without it nothing is built for it")
    assert PAGE.read_text(encoding="utf-8") == render_page(), "run `make docs`"


def test_every_target_has_a_column() -> None:
    assert {target.kind for target, _ in COLUMNS.values()} == TARGETS.keys()


def test_every_combination_is_in_the_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = llmc("families", "--json", capsys=capsys, monkeypatch=monkeypatch)
    found = json.loads(done.stdout)
    assert done.code == 0
    assert [one["architecture"] for one in found] == [*FAMILIES]
    for one in found:
        assert one["reasons"].keys() == COLUMNS.keys()
        for algos in one["reasons"].values():
            assert algos.keys() == {"none", *FORMATS}
        # Whatever a target cannot quantize, the model itself is built for it.
        assert one["reasons"]["cpu"]["none"] == [], one["architecture"]
