"""Arguments of estimators, checked once at the border: columns of finite numbers, and options that have few values."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Real

import numpy as np
import numpy.typing as npt

from penstock.types import Float64Array


def finite_column(values: npt.ArrayLike, *, name: str) -> Float64Array:
    """`values` as float64 with one axis; a ValueError names the argument, the first bad row and its value."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must be a flat column of numbers, got rows of different shapes") from None
    if array.ndim != 1:
        raise ValueError(f"{name} must have one axis, got shape {array.shape}")
    if array.dtype.kind not in "fiub" and array.size:
        # Text would be parsed and None would become NaN without a word; only real numbers pass.
        original = values if isinstance(values, list | tuple) else array.tolist()
        array = np.array([_number(value, f"{name}[{row}]") for row, value in enumerate(original)])
    with np.errstate(over="ignore"):
        column_N = array.astype(np.float64, copy=False)
    finite_N = np.isfinite(column_N)
    if not finite_N.all():
        row = int(np.argmin(finite_N))
        raise ValueError(f"{name}[{row}] is {array[row]}; it must be a finite number")
    return column_N


def _number(value: object, place: str) -> float:
    if not isinstance(value, Real):
        raise ValueError(f"{place} is {value!r}; it must be a finite number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{place} is a number beyond the range of float64; it must be a finite number") from None


def one_of(value: str, allowed: Iterable[str], *, name: str) -> None:
    """Refuse a word that is not allowed, and suggest the nearest one that is."""
    words = list(allowed)
    if value not in words:
        raise ValueError(f"{name} is {value!r}, did you mean {nearest(value, words)!r}? Known: {', '.join(words)}")


def nearest(value: str, words: list[str]) -> str:
    """The word that is spelled most like `value`.

    >>> nearest("mean_sdt_norm", ["mean_norm", "mean_std_norm"])
    'mean_std_norm'
    """
    return difflib.get_close_matches(str(value), words, n=1, cutoff=0.0)[0]


def not_negative(value: float, *, name: str) -> None:
    """Refuse a setting below 0, NaN or infinity."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {value}; it must be a finite number, 0 or more")
