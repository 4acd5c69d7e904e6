"""A curve in one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], *, width: int = 60, low: float | None = None, high: float | None = None) -> str:
    """At most `width` bars, each the mean of its share of the values; the scale goes from `low` to `high`, or as far as the values do.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7])
    '▁▂▃▄▅▆▇█'
    >>> sparkline([0.0, 0.0, 1.0, 1.0], width=2)
    '▁█'
    """
    means = thinned(values, width)
    if not means:
        return ""
    bottom = min(means) if low is None else low
    top = max(means) if high is None else high
    scale = (len(_BARS) - 1) / (top - bottom) if top > bottom else 0.0
    return "".join(_BARS[min(len(_BARS) - 1, max(0, round((value - bottom) * scale)))] for value in means)


def thinned(values: Sequence[float], width: int) -> list[float]:
    """At most `width` means of neighbours, as equally many values each as can be.

    >>> thinned([1.0, 3.0, 5.0, 7.0], 2)
    [2.0, 6.0]
    """
    count = len(values)
    if count <= width:
        return list(values)
    edges = [place * count // width for place in range(width + 1)]
    return [sum(values[start:stop]) / (stop - start) for start, stop in pairwise(edges)]
