"""A line chart as SVG text: a few series over one axis, values on a logarithmic scale."""

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 40, 50
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Distinct to colour-blind readers. Source: Okabe and Ito, Color Universal Design, 2008."""

_FLOOR = 1e-9
"""Values below are drawn here: a logarithm has no zero."""


def line_chart(title: str, x_label: str, y_label: str, series: Mapping[str, Points]) -> str:
    """Return an SVG document of `series`, each a name and its (x, y) points in order of x."""
    points = [point for line in series.values() for point in line]
    assert points, "nothing to draw"
    right = max(x for x, _ in points) or 1.0
    logs = [math.log10(max(y, _FLOOR)) for _, y in points]
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    high = max(high, low + 1)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (_WIDTH - _LEFT - _RIGHT) * x / right
        up = (_HEIGHT - _TOP - _BOTTOM) * (math.log10(max(y, _FLOOR)) - low) / (high - low)
        return _LEFT + across, _HEIGHT - _BOTTOM - up

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for exponent in range(low, high + 1):
        _, y = place(0, 10.0**exponent)
        parts.append(
            f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">1e{exponent}</text>'
        )
    for tick in _ticks(right):
        x, y = place(tick, 10.0**low)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{tick:g}</text>')
    for index, (name, line) in enumerate(series.items()):
        parts += _series(index, name, [place(x, y) for x, y in line])
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts += [
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(x_label)}'
        "</text>",
        f'<text x="16" y="{middle:.0f}" text-anchor="middle"'
        f' transform="rotate(-90 16 {middle:.0f})">{escape(y_label)}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _series(index: int, name: str, places: Sequence[tuple[float, float]]) -> list[str]:
    """Return a line and its entry in the legend, top right."""
    colour = _COLOURS[index % len(_COLOURS)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    y = _TOP + 14 * index
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
        f'<text x="{_WIDTH - _RIGHT}" y="{y}" text-anchor="end" fill="{colour}">{escape(name)}'
        "</text>",
    ]


def _ticks(right: float) -> list[float]:
    """Return about five round numbers from 0 to `right`."""
    step = 10.0 ** math.floor(math.log10(right))
    step = next(step * part for part in (0.1, 0.2, 0.5, 1, 2) if right / (step * part) <= 6)
    return [step * count for count in range(int(right / step) + 1)]
