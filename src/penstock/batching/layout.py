"""Where every node of a forest goes, and how columns are carried there without a loop over tokens. Made for `packing`, pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.batching.forest import Forest, IntArray, before
from penstock.batching.rows import best_fit
from penstock.types import Int32Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """The rows as runs of tokens: the nodes of each row in order, then its padding, maybe empty. `_J` is the axis of runs.

    Laid end to end the runs are exactly the rows, so that every (row, token) array is one `repeat` or one `take`, reshaped.
    """

    num_rows: int
    width: int
    node_J: IntArray
    """The node that the run holds; -1 for padding."""
    row_J: IntArray
    tokens_J: IntArray
    run_K: IntArray
    """The run that holds the node."""
    source: IntArray
    """For each place, the token's index in all samples laid end to end; padding counts on behind them, and means the last entry of what is taken."""

    @property
    def column_J(self) -> IntArray:
        """Column of the run's first token."""
        return before(self.tokens_J) - self.row_J * self.width

    def spread(self, values_J: IntArray) -> Int32Array:
        """(row, token): the value of the run."""
        return np.repeat(values_J.astype(np.int32), self.tokens_J).reshape(self.num_rows, self.width)

    def counted(self, first_J: IntArray) -> Int32Array:
        """(row, token): the value of the run plus the number of its tokens before this one."""
        places = np.arange(self.num_rows * self.width, dtype=np.int32).reshape(self.num_rows, self.width)
        places += self.spread(first_J - before(self.tokens_J))
        return places

    def taken(self, flat: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """(row, token, ...): the token's entry in `flat`, all samples laid end to end and behind them what stands where there is no token."""
        # One gather from a copy of everything: it copies shared prompts as often as they are shared, and is still cheaper than a slice per node.
        return flat.take(self.source, axis=0, mode="clip").reshape(self.num_rows, self.width, *flat.shape[1:])


def lay_out(trees: Forest, lengths_S: IntArray, *, tokens_per_row: int | None) -> Layout:
    """Pack the trees into rows. `lengths_S` are the tokens of each sample; None makes rows as wide as the biggest tree."""
    tokens_F, roots_F = trees.tokens_F, trees.roots_F
    capacity = int(tokens_F.max(initial=0)) if tokens_per_row is None else tokens_per_row
    rows = best_fit(tokens_F, tokens_per_row=capacity)
    order_F = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=len(tokens_F))
    row_F = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    used_R = np.bincount(row_F, weights=tokens_F[order_F], minlength=len(rows)).astype(np.int64)
    width = int(used_R.max(initial=0))

    nodes_F = np.diff(roots_F, append=len(trees.parent_K))[order_F]
    node_K = np.arange(len(trees.parent_K)) + np.repeat(roots_F[order_F] - before(nodes_F), nodes_F)
    row_K = np.repeat(row_F, nodes_F)
    row_ends_R = np.searchsorted(row_K, np.arange(len(rows)), side="right")
    node_J = np.insert(node_K, row_ends_R, -1)
    row_J = np.insert(row_K, row_ends_R, np.arange(len(rows)))
    is_padding_J = node_J < 0
    tokens_J = np.where(is_padding_J, (width - used_R)[row_J], trees.tokens_K[node_J])
    source_J = np.where(is_padding_J, lengths_S.sum(), (before(lengths_S)[trees.sample_K] + trees.start_K)[node_J])
    run_K = np.empty_like(node_K)
    run_K[node_J[~is_padding_J]] = np.flatnonzero(~is_padding_J)
    return Layout(
        num_rows=len(rows),
        width=width,
        node_J=node_J,
        row_J=row_J,
        tokens_J=tokens_J,
        run_K=run_K,
        source=np.arange(len(rows) * width) + np.repeat(source_J - before(tokens_J), tokens_J),
    )
