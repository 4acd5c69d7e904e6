"""Sums backwards in time inside trajectories, without a loop over rows or time."""

from __future__ import annotations

import numpy as np

from penstock.advantages._deviations import LARGEST
from penstock.advantages._labels import Groups, IntpArray
from penstock.types import Float64Array


class Timeline:
    """Rows of each trajectory one after the other, in the order they came; trajectories may interleave in the input."""

    def __init__(self, trajectories: Groups) -> None:
        index_N = trajectories.index_N
        in_order = bool((index_N[1:] >= index_N[:-1]).all())
        self._order_N: IntpArray | None = None if in_order else trajectories.order()
        sorted_N = index_N if self._order_N is None else index_N[self._order_N]
        self._rows_after_N: IntpArray = np.cumsum(trajectories.sizes_P)[sorted_N]
        self._rows_after_N -= np.arange(1, len(index_N) + 1)
        self.longest = int(trajectories.sizes_P.max()) if len(index_N) else 0

    def following(self, values_N: Float64Array, at_end_N: Float64Array | float = 0.0) -> Float64Array:
        """For each row the value of the next row of its trajectory, for a last row that of `at_end_N`."""
        sorted_N = self._sorted(values_N)
        next_N = np.zeros_like(sorted_N)
        next_N[:-1] = sorted_N[1:]
        ends_N = at_end_N if isinstance(at_end_N, float) else self._sorted(at_end_N)
        return self._restored(np.where(self._rows_after_N == 0, ends_N, next_N))

    def discounted_sums(self, values_N: Float64Array, decay: float) -> Float64Array:
        """`x_t = value_t + decay * x_(t+1)`. The values must leave room for the sums; see `headroom`.

        Doubles the reach of every row until it spans the longest trajectory, so it takes its logarithm in passes. What a row adds up, and in which order,
        depends on itself and what follows it only: equal futures have bit-equal sums.
        """
        sums_N = self._sorted(values_N).copy()
        ahead_N = np.empty_like(sums_N)  # one for all passes: on large columns fresh memory costs more than the arithmetic
        reach, factor = 1, decay
        while reach < self.longest and factor != 0:
            np.multiply(sums_N[reach:], factor, out=ahead_N[:-reach])
            np.add(sums_N[:-reach], ahead_N[:-reach], out=sums_N[:-reach], where=self._rows_after_N[:-reach] >= reach)
            reach, factor = 2 * reach, factor * factor
        return self._restored(sums_N)

    def _sorted(self, values_N: Float64Array) -> Float64Array:
        return values_N if self._order_N is None else values_N[self._order_N]

    def _restored(self, sorted_N: Float64Array) -> Float64Array:
        if self._order_N is None:
            return sorted_N
        values_N = np.empty_like(sorted_N)
        values_N[self._order_N] = sorted_N
        return values_N


def headroom(num_terms: int, *columns: Float64Array) -> float:
    """A power of two to scale columns by, so that a sum of `num_terms` of their values is finite. 1 unless they are huge, so that usually nothing is rounded.

    >>> headroom(4, np.array([1.0, 5.0])), headroom(4, np.array([1e308]))
    (1.0, 0.125)
    """
    largest = max((max(float(column.max()), -float(column.min())) for column in columns if len(column)), default=0.0)
    if largest <= LARGEST / (2 * num_terms + 2):
        return 1.0
    return float(2.0 ** -(int(num_terms).bit_length()))
