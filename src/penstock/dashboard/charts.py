"""Curves as SVG: text that a page can hold, without scripts, fonts or anything from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 28, 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a chart."""

    name: str
    points: Points
    colour: str
    dots: bool = False
    """Draw dots and no line: for few points, between which nothing was looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at a place of the x axis."""

    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Which part of the plane a chart shows, and where on the picture."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        """Across the picture."""
        return _LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Down the picture."""
        return _HEIGHT - _BOTTOM - (value - self.y_low) / (self.y_high - self.y_low) * (_HEIGHT - _TOP - _BOTTOM)


def chart(series: Sequence[Series], *, x_label: str, y_low: float | None = None, y_high: float | None = None, marks: Sequence[Mark] = ()) -> str:
    """An SVG picture of some curves over the same axis. An empty string if there is no point to draw."""
    points = [point for one in series for point in one.points if math.isfinite(point[1])]
    if not points:
        return ""
    frame = _frame(points, y_low, y_high)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        *_grid(frame, x_label),
        *(_mark(frame, mark) for mark in marks),
        *(_curve(frame, one) for one in series if one.points),
        _legend(series),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high`, at most `most` of them or a few more.

    >>> ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> ticks(0.0, 219.0)
    [0.0, 50.0, 100.0, 150.0, 200.0]
    """
    rough = (high - low) / (most - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _frame(points: Points, y_low: float | None, y_high: float | None) -> Frame:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    bottom = min(ys) if y_low is None else min(y_low, *ys)
    top = max(ys) if y_high is None else max(y_high, *ys)
    # A single point, or a flat line, still needs a plane to lie in.
    return Frame(x_low=min(xs), x_high=max(xs) if max(xs) > min(xs) else min(xs) + 1, y_low=bottom, y_high=top if top > bottom else bottom + 1)


def _grid(frame: Frame, x_label: str) -> list[str]:
    lines = []
    for value in ticks(frame.y_low, frame.y_high):
        y = frame.y(value)
        lines.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in ticks(frame.x_low, frame.x_high, 9):
        lines.append(f'<text x="{frame.x(value):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
    lines.append(f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    return lines


def _curve(frame: Frame, series: Series) -> str:
    places = [(frame.x(x), frame.y(y)) for x, y in series.points if math.isfinite(y)]
    if series.dots:
        return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{escape(series.colour)}"/>' for x, y in places)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{path}" fill="none" stroke="{escape(series.colour)}" stroke-width="1.6"/>'


def _mark(frame: Frame, mark: Mark) -> str:
    x = frame.x(mark.x)
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" class="mark"/>'
    return f'{line}<text x="{x + 4:.1f}" y="{_HEIGHT - _BOTTOM - 6}" class="mark">{escape(mark.label)}</text>'


def _legend(series: Sequence[Series]) -> str:
    x, parts = _LEFT, []
    for one in series:
        parts.append(f'<text x="{x}" y="16" style="fill: {escape(one.colour)}" class="legend">{escape(one.name)}</text>')
        x += 8 * len(one.name) + 16
    return "".join(parts)
