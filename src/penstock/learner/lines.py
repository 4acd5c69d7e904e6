"""From rows of a packed batch to one line of tokens that a model can run over.

Only what is needed is in the line: padding is not, nor are nodes that nothing scored hangs on, nor the last token of a reply, which is predicted but
predicts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from penstock.errors import InvariantError
from penstock.models import TreeLayout, tree_layout
from penstock.types import BoolArray, RlExample

_IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """Tokens of some prefix trees one after another (`_T`), and the tokens to be scored (`_L`)."""

    ids_T: torch.Tensor
    positions_T: torch.Tensor
    layout: TreeLayout
    predictors_L: torch.Tensor
    """Place in the line whose logits predict the token."""
    targets_L: torch.Tensor
    """Id of the token."""
    places_L: _IntArray
    """Where the token stands in the example's (row, token) arrays, flattened."""


def line_of(example: RlExample, wanted_RT: BoolArray) -> Line:
    """The line that scores the tokens where `wanted_RT` is true, at least one. Raises `InvariantError` if the example is no packed forest."""
    places_L = np.flatnonzero(wanted_RT)
    predictors_L = _flat_predecessors(example, places_L)
    is_predictor_N = np.zeros(example.segment_ids.size, dtype=np.bool_)
    is_predictor_N[predictors_L] = True
    places_P = np.flatnonzero(example.segment_ids)
    nodes = _nodes_of(example, places_P)
    kept_lengths = _kept_lengths(nodes, is_predictor_N[places_P])
    in_line_P = _offsets(nodes.lengths) < np.repeat(kept_lengths, nodes.lengths)
    places_T = places_P[in_line_P]
    place_in_line_N = np.full(example.segment_ids.size, -1, dtype=np.int64)
    place_in_line_N[places_T] = np.arange(len(places_T))
    return Line(
        ids_T=torch.from_numpy(example.input_ids.reshape(-1)[places_T].astype(np.int64)),
        positions_T=torch.from_numpy(example.position_ids.reshape(-1)[places_T].astype(np.int64)),
        layout=_layout(kept_lengths, nodes.parents),
        predictors_L=torch.from_numpy(place_in_line_N[predictors_L]),
        targets_L=torch.from_numpy(example.input_ids.reshape(-1)[places_L].astype(np.int64)),
        places_L=places_L,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Nodes:
    """Nodes of all rows in the order in which they stand."""

    lengths: _IntArray
    parents: _IntArray
    """Number of the parent in this order, -1 for roots."""


def _flat_predecessors(example: RlExample, places_L: _IntArray) -> _IntArray:
    columns_L = example.predecessors.reshape(-1)[places_L]
    width = example.predecessors.shape[1]
    if (columns_L < 0).any():
        row, column = divmod(int(places_L[np.argmin(columns_L)]), width)
        raise InvariantError(f"the token in row {row}, column {column} carries loss but nothing stands before it, so nothing predicts it")
    flat: _IntArray = places_L // width * width + columns_L
    return flat


def _nodes_of(example: RlExample, places_P: _IntArray) -> _Nodes:
    """Runs of equal segment number, row by row."""
    width, num_keys = example.segment_ids.shape[1], example.parents.shape[1]
    rows_P = places_P // width
    keys_P = rows_P * num_keys + example.segment_ids.reshape(-1)[places_P]
    first_K = np.flatnonzero(np.diff(keys_P, prepend=-1))
    keys_K = keys_P[first_K]
    number = np.full(example.parents.size, -1, dtype=np.int64)
    number[keys_K] = np.arange(len(keys_K))
    if len(np.unique(keys_K)) != len(keys_K):
        raise InvariantError("a segment of the packed batch does not stand in one piece")
    segments_K = example.parents.reshape(-1)[keys_K].astype(np.int64)
    parents_K = np.where(segments_K > 0, number[keys_K // num_keys * num_keys + segments_K], -1)
    if (parents_K >= np.arange(len(keys_K))).any() or ((parents_K < 0) != (segments_K == 0)).any():
        raise InvariantError("a segment of the packed batch stands before its parent")
    return _Nodes(lengths=np.diff(first_K, append=len(keys_P)), parents=parents_K)


def _kept_lengths(nodes: _Nodes, is_predictor_P: BoolArray) -> _IntArray:
    """Tokens of each node that the line needs: all if a needed node hangs on it, else those up to its last predictor."""
    starts_K = np.cumsum(nodes.lengths) - nodes.lengths
    last_P = np.where(is_predictor_P, _offsets(nodes.lengths) + 1, 0)
    kept = np.maximum.reduceat(last_P, starts_K).astype(np.int64)
    for node in range(len(kept) - 1, -1, -1):
        parent = nodes.parents[node]
        if kept[node] > 0 and parent >= 0:
            kept[parent] = nodes.lengths[parent]
    return kept


def _layout(kept_lengths: _IntArray, parents: _IntArray) -> TreeLayout:
    """Layout of the nodes that keep a token."""
    is_kept = kept_lengths > 0
    number = np.cumsum(is_kept) - 1
    kept_parents = np.where(parents >= 0, number[parents], -1)[is_kept]
    return tree_layout(kept_lengths[is_kept].tolist(), kept_parents.tolist())


def _offsets(lengths: _IntArray) -> _IntArray:
    """For each token of each node, how many of the node's tokens stand before it."""
    offsets: _IntArray = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return offsets
