"""Group labels as numbers, and sums over groups without a loop over rows. Every estimator stands on this.

A label may be any hashable value. Rows of one group need not be neighbours. `_N` is the axis of rows, `_P` that of groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.advantages._columns import rows_of
from penstock.types import Float64Array

Labels = npt.NDArray[Any] | Iterable[Hashable]
"""One label per row. Labels that Python calls equal are one group, so 1, 1.0 and True are the same."""
IntpArray = npt.NDArray[np.intp]
Rows = slice | IntpArray
"""Some of the rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """For each row, the number of its group."""

    index_N: IntpArray
    sizes_P: IntpArray
    """Rows of each group. Some numbers may be unused (size 0): dense integer labels are taken as they are, because sorting them costs more."""

    def sums(self, values_N: Float64Array) -> Float64Array:
        """Sum of each group's rows; 0 for an unused number."""
        sums_P: Float64Array = np.bincount(self.index_N, weights=values_N, minlength=len(self.sizes_P))  # type: ignore[assignment]  # stubs forget weights
        return sums_P

    def largest(self, values_N: Float64Array) -> Float64Array:
        """Largest of each group's rows, at least 0."""
        largest_P = np.zeros(len(self.sizes_P))
        np.maximum.at(largest_P, self.index_N, values_N)
        return largest_P

    def first(self, values_N: Float64Array) -> Float64Array:
        """First row of each group; 0 for an unused number."""
        first_P = np.zeros(len(self.sizes_P))
        first_P[self.index_N[::-1]] = values_N[::-1]  # of equal indices the last assignment stays
        return first_P

    @cached_property
    def first_row_P(self) -> IntpArray:
        """Row where each group is met first; -1 for an unused number."""
        row_P = np.full(len(self.sizes_P), -1, dtype=np.intp)
        row_P[self.index_N[::-1]] = np.arange(len(self.index_N) - 1, -1, -1)
        return row_P

    def of_rows(self, rows_M: IntpArray) -> Groups:
        """The same groups over some of the rows, in that order."""
        index_M = self.index_N[rows_M]
        return Groups(index_N=index_M, sizes_P=np.bincount(index_M, minlength=len(self.sizes_P)))

    def renumbered(self, rows: Rows) -> Groups:
        """As `of_rows`, with numbers of its own: it costs what those rows cost, however many groups there are."""
        if isinstance(rows, slice) and rows == slice(0, len(self.index_N)):
            return self
        return _of_integers(self.index_N[rows])

    def split_by(self, number_N: IntpArray) -> Groups:
        """Groups of the rows that are together here and have the same number, of -1 or more."""
        return _of_integers(self.index_N * (int(number_N.max(initial=0)) + 2) + number_N)

    def order(self) -> IntpArray:
        """The rows group by group, those of one group in the order they came."""
        # Numbers of 16 bits are sorted in linear time.
        narrow_N = self.index_N.astype(np.uint16) if len(self.sizes_P) <= 1 << 16 else self.index_N
        return np.argsort(narrow_N, kind="stable")

    def stretches(self, least_rows: int) -> Iterator[Rows]:
        """All rows in parts of whole groups, each part of `least_rows` or a little more, so that what is computed on one part stays in the cache."""
        num_rows = len(self.index_N)
        if num_rows <= least_rows:
            yield slice(0, num_rows)
            return
        starts_R = _starts(self.index_N)
        order_N = None
        if len(starts_R) > np.count_nonzero(self.sizes_P):  # rows of different groups are mixed
            order_N = self.order()
            starts_R = _starts(self.index_N[order_N])
        nearest_R = np.searchsorted(starts_R, np.arange(least_rows, num_rows, least_rows))
        cuts = dict.fromkeys([0, *np.append(starts_R, num_rows)[nearest_R].tolist(), num_rows])
        for start, stop in pairwise(cuts):
            yield slice(start, stop) if order_N is None else order_N[start:stop]


def groups_of(labels: Labels, num_rows: int, *, name: str = "group") -> Groups:
    """Number the labels. `name` is what errors call the argument; they name the row and the value too.

    >>> groups_of(["b", "a", "b"], 3).index_N
    array([0, 1, 0])
    """
    column = _column(labels, name)
    if len(column) != num_rows:
        raise ValueError(f"{name} has {len(column)} labels for {num_rows} rows; there must be one label per row")
    if isinstance(column, np.ndarray):
        return _of_integers(column)
    index_N = _number_hashables(column, name)
    return Groups(index_N=index_N, sizes_P=np.bincount(index_N))


def check_inside(inner: Groups, outer: Groups, *, inner_name: str, outer_name: str, labels: Labels) -> None:
    """Refuse an inner group (a trajectory, say) whose rows lie in several outer ones. `labels` are the outer ones, for the message."""
    if (astray := _astray(outer.index_N, inner)) is not None:
        row, first = astray
        # An iterator is used up by now; then the numbers of the groups must do.
        shown = labels.tolist() if isinstance(labels, np.ndarray) else labels if isinstance(labels, (list, tuple)) else outer.index_N.tolist()
        raise ValueError(f"{outer_name}[{row}] is {shown[row]!r}, but row {first} of the same {inner_name} has {shown[first]!r}; it must be one")


def check_equal_inside(values_N: Float64Array, inner: Groups, *, name: str, inner_name: str) -> None:
    """Refuse values that differ between rows of one inner group."""
    if (astray := _astray(values_N, inner)) is not None:
        row, first = astray
        raise ValueError(f"{name}[{row}] is {values_N[row]}, but row {first} of the same {inner_name} has {values_N[first]}; it must be one")


def _astray(values_N: npt.NDArray[Any], inner: Groups) -> tuple[int, int] | None:
    """The first row whose value differs from that of the first row of its group, and that row; None if there is none."""
    # What one row says stands once for its group, and is dealt out to all of them in one go.
    value_P = np.zeros(len(inner.sizes_P), dtype=values_N.dtype)
    value_P[inner.index_N] = values_N
    if (values_N == value_P[inner.index_N]).all():
        return None
    first_N = inner.first_row_P[inner.index_N]
    row = int(np.argmax(values_N != values_N[first_N]))
    return row, int(first_N[row])


def _column(labels: Labels, name: str) -> npt.NDArray[np.integer[Any]] | list[Hashable]:
    """An integer array where the labels are integers, else a list. A mixed list never goes through numpy, which would turn 1 into "1"."""
    if hasattr(labels, "__array__"):
        array = np.asarray(labels)
        if array.ndim != 1:
            raise ValueError(f"{name} must have one axis, got shape {array.shape}")
        if array.dtype.kind in "iu":
            return array
        if array.dtype.kind == "b":
            return array.astype(np.int8)
        return list(array.tolist())
    column = labels if isinstance(labels, list) else rows_of(labels, name=name)
    # The first label often tells that they are not all integers, and saves a look at the others.
    if isinstance(next(iter(column), 0), int) and set(map(type, column)) <= {int, bool}:
        try:
            return np.array(column, dtype=np.int64)
        except OverflowError:  # beyond 64 bits they are numbered like any other hashable
            return column
    return column


def _of_integers(labels_N: npt.NDArray[np.integer[Any]]) -> Groups:
    index_N = _number_integers(labels_N)
    return Groups(index_N=index_N, sizes_P=np.bincount(index_N))


def _starts(index_N: IntpArray) -> IntpArray:
    """Rows that begin a run of equal numbers."""
    starts_N = np.empty(len(index_N), dtype=np.bool_)
    starts_N[:1] = True
    np.not_equal(index_N[1:], index_N[:-1], out=starts_N[1:])
    return np.flatnonzero(starts_N)


def _number_integers(labels_N: npt.NDArray[np.integer[Any]]) -> IntpArray:
    if not len(labels_N):
        return np.zeros(0, dtype=np.intp)
    low, high = int(labels_N.min()), int(labels_N.max())
    # A table with a few unused places is many times cheaper than a sort; a sparse range (hashes) would make it too big.
    if high - low <= 4 * len(labels_N) + 1024:
        # The difference is taken in the labels' own width where 64 bits are signed or not; narrower ones could wrap round.
        wide_N = labels_N if labels_N.dtype.itemsize == 8 else labels_N.astype(np.int64)
        return (wide_N - wide_N.dtype.type(low)).astype(np.intp, copy=False)
    inverse_N: IntpArray = np.unique(labels_N, return_inverse=True)[1]
    return inverse_N


def _number_hashables(labels_N: list[Hashable], name: str) -> IntpArray:
    try:
        index_N, number = numbered(labels_N)
    except TypeError:
        row, label = next((row, label) for row, label in enumerate(labels_N) if not _hashable(label))
        raise ValueError(f"{name}[{row}] is {label!r}, which is not hashable and so cannot be a label") from None
    for label in number:
        if label != label:
            row = next(row for row, other in enumerate(labels_N) if other is label)
            raise ValueError(f"{name}[{row}] is {label!r}, which does not equal itself and so cannot be a label")
    return index_N


def numbered(values_N: list[Hashable]) -> tuple[IntpArray, dict[Hashable, int]]:
    """The values as numbers from 0 in the order they are met, and which number each has. TypeError if one is not hashable.

    One look-up per row and all of it in C: a value that is met for the first time draws the next number. Large columns are bound by memory, so nothing
    here looks at a value twice.
    """
    number: defaultdict[Hashable, int] = defaultdict(count().__next__)
    index_N = np.fromiter(map(number.__getitem__, values_N), dtype=np.intp, count=len(values_N))
    return index_N, number


def _hashable(label: object) -> bool:
    try:
        hash(label)
    except TypeError:
        return False
    return True
