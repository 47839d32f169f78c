"""The report and its plot: every number, in well-formed Markdown and SVG."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from llmc.gate.plot import line_chart
from llmc.gate.report import PLOT_NAME, REPORT_NAME, summarize, write_report
from llmc.gate.thresholds import default_thresholds, judge
from tests.gate.records import measurement, text

SVG = "{http://www.w3.org/2000/svg}"


def test_report_has_the_numbers_the_limits_and_the_failures(tmp_path: Path) -> None:
    bad = text("code", mean_kl=0.04, worst="x = `a|b`\n")
    gate = judge(measurement(text(), bad, quant_algo="W8A16"), default_thresholds("W8A16", None))
    write_report(gate, tmp_path)
    report = (tmp_path / REPORT_NAME).read_text()
    for part in (
        "# Quality gate: failed",
        "(W8A16, bfloat16), beside model in float32",
        "| code | 100 | 0.04 | 0.08 | 0.12 | 20 |",
        "- code: mean_kl 0.04, expected at most 0.03",
        f"({PLOT_NAME})",
        "| 7 | 0.04 | `x = 'a\\|b'⏎` | ` a` | ` b` |",
        "- prose: sha256 aaaa",
    ):
        assert part in report, part
    root = ElementTree.parse(tmp_path / PLOT_NAME).getroot()
    assert [len((line.get("points") or "").split()) for line in root.iter(f"{SVG}polyline")] == [
        *(3, 3)
    ]


def test_engine_that_was_run_alone_has_no_plot(tmp_path: Path) -> None:
    (tmp_path / PLOT_NAME).write_text("of an earlier gate")
    alone = text().model_copy(update={"divergence": None})
    found = measurement(alone).model_copy(update={"reference": None})
    gate = judge(found, default_thresholds(None, None))
    write_report(gate, tmp_path)
    assert "run alone" in (tmp_path / REPORT_NAME).read_text()
    assert not (tmp_path / PLOT_NAME).exists()
    assert list(summarize(gate)) == ["prose: perplexity 20.000, without a reference"]


@pytest.mark.parametrize(
    "points",
    [[(0.0, 0.0)], [(0.0, 1e-3), (1008.0, 5.0)], [(16.0, 1e-30), (32.0, 1e30)], [(0.0, 1.0)]],
)
def test_chart_draws_every_point_inside_its_frame(points: list[tuple[float, float]]) -> None:
    root = ElementTree.fromstring(line_chart("a < b", "x", "y & z", {"one": points}))
    (line,) = root.iter(f"{SVG}polyline")
    places = [tuple(map(float, pair.split(","))) for pair in (line.get("points") or "").split()]
    assert len(places) == len(points)
    assert all(70 <= x <= 700 and 40 <= y <= 310 for x, y in places)


def test_larger_is_higher_by_its_logarithm() -> None:
    chart = line_chart("t", "x", "y", {"one": [(0, 1e-2), (1, 1e-1), (2, 1.0)]})
    (line,) = ElementTree.fromstring(chart).iter(f"{SVG}polyline")
    low, middle, high = (float(pair.split(",")[1]) for pair in (line.get("points") or "").split())
    assert (low, middle, high) == (310, 175, 40)
