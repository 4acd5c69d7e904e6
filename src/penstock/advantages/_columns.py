"""Arguments of estimators, checked once at the border: columns of finite numbers, and options that have few values."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Set
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.types import Float64Array


def finite_column(values: npt.ArrayLike, *, name: str) -> Float64Array:
    """`values` as float64 with one axis; a ValueError names the argument, the first bad row and its value."""
    return _column(values, name, allow_nan=False)


def column_with_gaps(values: npt.ArrayLike, num_rows: int | None = None, *, name: str) -> Float64Array:
    """As `finite_column`, with exactly `num_rows` rows where that is given; NaN stands for a value that is not known."""
    column_N = _column(values, name, allow_nan=True)
    return column_N if num_rows is None else _of_length(column_N, num_rows, name)


def _column(values: npt.ArrayLike, name: str, *, allow_nan: bool) -> Float64Array:
    try:
        array = np.asarray(values)
    except ValueError:  # some rows are lists
        array = np.array(_numbers(rows_of(values, name=name), name))  # type: ignore[arg-type]  # anything else numpy would have taken
    if array.ndim == 0:
        raise ValueError(no_column(values, name))
    if array.ndim != 1:
        raise ValueError(f"{name} must have one axis, got shape {array.shape}")
    if array.dtype.kind not in "fiub" and array.size:
        # Text would be parsed and None would become NaN without a word; only real numbers pass.
        array = np.array(_numbers(values if isinstance(values, list | tuple) else array.tolist(), name))
    with np.errstate(over="ignore"):
        column_N = array.astype(np.float64, copy=False)
    allowed_N = ~np.isinf(column_N) if allow_nan else np.isfinite(column_N)
    if not allowed_N.all():
        row = int(np.argmin(allowed_N))
        raise ValueError(f"{name}[{row}] is {array[row]}; it must be a finite number")
    return column_N


def _numbers(values: Iterable[object], name: str) -> list[float]:
    return [_number(value, f"{name}[{row}]") for row, value in enumerate(values)]


def _number(value: object, place: str) -> float:
    if not isinstance(value, Real):
        raise ValueError(f"{place} is {value!r}; it must be a finite number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{place} is a number beyond the range of float64; it must be a finite number") from None


def matching_column(values: npt.ArrayLike, num_rows: int, *, name: str) -> Float64Array:
    """As `finite_column`, with exactly `num_rows` rows."""
    return _of_length(finite_column(values, name=name), num_rows, name)


def _of_length(column_N: Float64Array, num_rows: int, name: str) -> Float64Array:
    if len(column_N) != num_rows:
        raise ValueError(f"{name} has {len(column_N)} values for {num_rows} rows; there must be one per row")
    return column_N


def check_bounds(column_N: Float64Array, *, name: str, least: float) -> None:
    """Refuse a column with a value below `least`, by row and value."""
    below_N = column_N < least
    if below_N.any():
        row = int(np.argmax(below_N))
        raise ValueError(f"{name}[{row}] is {column_N[row]}; it must be {least:g} or more")


def one_of(value: str, allowed: Iterable[str], *, name: str) -> None:
    """Refuse a word that is not allowed, and suggest the nearest one that is."""
    words = list(allowed)
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{name} is {value!r}, did you mean {nearest(value, words)!r}? Known: {', '.join(words)}")


def nearest(value: str, words: list[str]) -> str:
    """The word that is spelled most like `value`.

    >>> nearest("mean_sdt_norm", ["mean_norm", "mean_std_norm"])
    'mean_std_norm'
    """
    return difflib.get_close_matches(str(value), words, n=1, cutoff=0.0)[0]


def not_negative(value: float, *, name: str) -> None:
    """Refuse a setting below 0, NaN or infinity."""
    if not (_is_number(value) and value >= 0):
        raise ValueError(f"{name} is {value!r}; it must be a finite number, 0 or more")


def is_finite(value: float, *, name: str) -> None:
    """Refuse a setting that is NaN, infinity or no number."""
    if not _is_number(value):
        raise ValueError(f"{name} is {value!r}; it must be a finite number")


def in_range(value: float, low: float, high: float, *, name: str) -> None:
    """Refuse a setting outside of `low` to `high`, both included."""
    if not (_is_number(value) and low <= value <= high):
        raise ValueError(f"{name} is {value!r}; it must lie in {low:g} to {high:g}")


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def whole_number(value: int, least: int, *, name: str) -> None:
    """Refuse a setting that is no integer, below `least`, or beyond 31 bits."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value < 1 << 31:
        raise ValueError(f"{name} is {value!r:.80}; it must be an integer, {least} or more and below 2**31")


def true_or_false(value: bool, *, name: str) -> None:
    """Refuse a setting that is neither: the text "false" would count as true."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} is {value!r}; it must be true or false")


def rows_of(values: Iterable[Any], *, name: str) -> list[Any]:
    """`values` as a list; a ValueError names an argument that is no column at all.

    >>> rows_of(None, name="group")
    Traceback (most recent call last):
    ValueError: group is None; it must be a column with one entry per row
    """
    # Text is a column of letters to Python, and a set has no order: nobody means either.
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, Mapping, Set)) or getattr(values, "ndim", 1) == 0:
        raise ValueError(no_column(values, name))
    return list(values)


def no_column(values: object, name: str) -> str:
    """What to say about an argument that is no column."""
    return f"{name} is {values!r:.80}; it must be a column with one entry per row"
