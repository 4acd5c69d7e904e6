"""Two histograms over the same bins, side by side, as SVG: a picture that stands alone, or a page around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from penstock.dashboard.charts import ticks

_WIDTH, _HEIGHT = 360, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 40, 34
_COLOURS = ("#2563eb", "#c2570c")
_STYLE = "text { font: 11px system-ui, sans-serif; fill: #374151; } .title { font-weight: 600; } .grid { stroke: #e5e7eb; }"
_PAGE_STYLE = "body { font: 15px/1.5 system-ui, sans-serif; max-width: 780px; margin: 2em auto; padding: 0 1em; } pre { overflow-x: auto; }"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same things counted in two ways."""

    title: str
    names: tuple[str, str]
    x_label: str
    edges: Sequence[float]
    """Ascending, one more than there are counts."""
    counts: tuple[Sequence[int], Sequence[int]]


def histograms(pairs: Sequence[Pair]) -> str:
    """An SVG file with a row for each pair. Both of a pair have the same axes, so that heights can be compared."""
    height = _HEIGHT * len(pairs)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _WIDTH} {height}" width="{2 * _WIDTH}" height="{height}" role="img">']
    parts.append(f"<style>{_STYLE}</style>")
    for row, pair in enumerate(pairs):
        most = max(1, *pair.counts[0], *pair.counts[1])
        for column in (0, 1):
            parts += [f'<g transform="translate({column * _WIDTH} {row * _HEIGHT})">', *_panel(pair, column, most), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def histogram_page(title: str, text: str, pairs: Sequence[Pair]) -> str:
    """An HTML page: the pictures, and `text` as it would stand in a terminal. Needs nothing but itself."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<style>{_PAGE_STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n{histograms(pairs)}<pre>{escape(text)}</pre>\n</body></html>\n"
    )


def _panel(pair: Pair, column: int, most: int) -> list[str]:
    low, high = pair.edges[0], pair.edges[-1]
    across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(value: float) -> float:
        return _LEFT + (value - low) / (high - low) * across

    def y(count: float) -> float:
        return _HEIGHT - _BOTTOM - count / most * down

    parts = [f'<text x="{_LEFT}" y="18" class="title">{escape(pair.title)}: {escape(pair.names[column])}</text>']
    for count in ticks(0, most, 5):
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(count):.1f}" y2="{y(count):.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(count) + 4:.1f}" text-anchor="end">{count:g}</text>')
    for left, right, count in zip(pair.edges[:-1], pair.edges[1:], pair.counts[column], strict=True):
        width = max(x(right) - x(left) - 1, 0.5)
        bar = f'<rect x="{x(left):.1f}" y="{y(count):.1f}" width="{width:.1f}" height="{y(0) - y(count):.1f}" fill="{_COLOURS[column]}">'
        parts.append(f"{bar}<title>{left:.4g} to {right:.4g}: {count}</title></rect>")
    parts += [f'<text x="{x(value):.1f}" y="{_HEIGHT - _BOTTOM + 14}" text-anchor="middle">{value:g}</text>' for value in ticks(low, high)]
    parts.append(f'<text x="{_LEFT + across / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(pair.x_label)}</text>')
    return parts
