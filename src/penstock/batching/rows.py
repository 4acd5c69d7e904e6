"""Trees into rows: best-fit decreasing."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from penstock.batching.forest import IntArray


def best_fit(tokens_F: IntArray, *, tokens_per_row: int) -> list[list[int]]:
    """Trees of each row: the largest tree first, each into the row where it leaves least room, or into a new one.

    Trees of equal size go in the order given, and of rows with equal room the earlier is taken. No tree may be bigger than a row.

    >>> best_fit(np.array([3, 7, 5, 2]), tokens_per_row=10)
    [[1, 0], [2, 3]]
    """
    order = np.argsort(-tokens_F, kind="stable")
    rows: list[list[int]] = []
    # Rows by free room, as one number (room * base + row), so that the search compares plain integers.
    base = len(tokens_F) + 1
    rooms: list[int] = []
    for tree, size in zip(order.tolist(), tokens_F[order].tolist(), strict=True):
        place = bisect_left(rooms, size * base)
        if place == len(rooms):
            room, row = tokens_per_row, len(rows)
            rows.append([])
        else:
            room, row = divmod(rooms.pop(place), base)
        rows[row].append(tree)
        if room > size:
            insort(rooms, (room - size) * base + row)
    return rows
