"""Samples into rows: every token that several members have in common is laid down once, nothing is padded that can be filled.

    samples -> one prefix tree per group (`trace.tree`) -> pieces no bigger than a row (`forest`) -> rows (`rows`) -> `RlExample`

Called by the learner's loop; pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.batching.forest import Forest, IntArray, before, forest
from penstock.batching.layout import Layout, lay_out
from penstock.types import BoolArray, Int32Array, RlExample, Sample

_PADDING: dict[str, Any] = {
    "ids": np.int32(0),
    "loss_mask": np.bool_(False),
    "logprobs": np.float32(0),
    "versions": np.int32(-1),
    "advantages": np.float32(0),
    "mixed_kv": np.bool_(False),
}
"""Per-token arrays that every sample has, with the type they are packed as and what stands where there is no token."""
_NOTHING = np.zeros(0)
REFERENCE = "reference_logprobs"
"""Named array of samples that becomes `RlExample.reference_logprobs`."""


def pack(samples: Sequence[Sample], *, tokens_per_row: int | None) -> RlExample:
    """Lay samples out in rows of at most `tokens_per_row` tokens; None makes rows as wide as the biggest tree.

    Every token with loss stands in exactly one place with loss, also where a tree bigger than a row is cut and its shared tokens are repeated. A row
    is as wide as the fullest one needs. The same samples in the same order give the same arrays; groups in another order give the same
    rows, but for `sample_ids`, which count through `samples`. ValueError: a path longer than a row, arrays that are not as long as the
    ids or that only some samples have, media.
    """
    if tokens_per_row is not None and tokens_per_row < 1:
        raise ValueError(f"tokens_per_row is {tokens_per_row}; it must be 1 or more, or None")
    if with_media := list(filter(attrgetter("media"), samples)):
        raise ValueError(f"a sample of {with_media[0].rollout_uid} stands for media {with_media[0].media[0][1]}, which rows of token ids cannot hold")
    lengths = list(map(len, map(attrgetter("ids"), samples)))
    flat = {name: _flat(_column(samples, name, lengths), padding) for name, padding in _PADDING.items()}
    lengths_S = np.array(lengths, dtype=np.int64)
    trees = forest(samples, lengths_S, _is_sampled(flat["versions"][:-1], flat["loss_mask"][:-1]), tokens_per_row=tokens_per_row)
    layout = lay_out(trees, lengths_S, tokens_per_row=tokens_per_row)
    taken = {name: layout.taken(column) for name, column in flat.items()}
    arrays = {name: layout.taken(_named(samples, name, lengths)) for name in sorted(set().union(*map(attrgetter("arrays"), samples)))}
    segment_J = _segments(layout)
    segment_ids = layout.spread(segment_J)
    is_padding = segment_ids == 0
    loss_mask = taken["loss_mask"]
    if trees.repeated_K.any():
        loss_mask &= layout.spread(_of_nodes(layout, trees.repeated_K, 0)) == 0
    position_ids = layout.counted(_of_nodes(layout, trees.start_K, 0))
    position_ids[is_padding] = 0
    sample_ids = layout.spread(_of_nodes(layout, trees.sample_K, 0))
    sample_ids[~loss_mask] = -1
    return RlExample(
        input_ids=taken["ids"],
        loss_mask=loss_mask,
        segment_ids=segment_ids,
        position_ids=position_ids,
        predecessors=_predecessors(trees, layout, is_padding),
        advantages=taken["advantages"],
        policy_logprobs=taken["logprobs"],
        versions=taken["versions"],
        mixed_kv=taken["mixed_kv"],
        sample_ids=sample_ids,
        parents=_parents(trees, layout, segment_J),
        num_samples=len(samples),
        reference_logprobs=arrays.pop(REFERENCE, None),
        arrays=arrays,
        environments=tuple(map(attrgetter("environment"), samples)),
    )


def cost(samples: Sequence[Sample]) -> int:
    """Tokens of the samples after prefix sharing inside each group, before any tree is cut to fit a row."""
    versions, loss_mask = (_flat([getattr(sample, name) for sample in samples], _PADDING[name])[:-1] for name in ("versions", "loss_mask"))
    lengths_S = np.array([len(sample.ids) for sample in samples], dtype=np.int64)
    return int(forest(samples, lengths_S, _is_sampled(versions, loss_mask), tokens_per_row=None).tokens_K.sum())


def fill_ratio(example: RlExample) -> float:
    """Share of the places in an example that hold a token; 1 for one without places."""
    return float((example.segment_ids > 0).mean()) if example.segment_ids.size else 1.0


def micro_batches(example: RlExample, tokens: int) -> Iterator[RlExample]:
    """Split an example by rows into parts of at most `tokens` places, but at least one row, and nearly equal numbers of rows.

    Rows keep their order. A part is as wide as its fullest row and shares memory with the whole; `num_samples` stays that of the batch.
    """
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}; it must be 1 or more")
    num_rows, width = example.segment_ids.shape
    rows_per_part = max(1, tokens // max(width, 1))
    num_parts = -(-num_rows // rows_per_part)
    for part in range(num_parts):
        yield _rows(example, slice(part * num_rows // num_parts, (part + 1) * num_rows // num_parts))


def rank_rows(example: RlExample, *, rank: int, num_ranks: int) -> RlExample:
    """The rows that a data-parallel rank computes: dealt out in turn, so that each has as many as the others, or one less. Else as `micro_batches`.

    All tokens with loss of a sample lie in one row, so no sample is split. A rank may get none of the rows.
    """
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank is {rank} of {num_ranks} ranks; they count from 0")
    return _rows(example, slice(rank, None, num_ranks))


def _rows(example: RlExample, rows: slice) -> RlExample:
    used = np.flatnonzero((example.segment_ids[rows] > 0).any(axis=0))
    width = int(used.max(initial=-1)) + 1
    num_segments = int(example.segment_ids[rows].max(initial=0))
    cut: dict[str, Any] = {"parents": example.parents[rows, : num_segments + 1]}
    for field in fields(example):
        value = getattr(example, field.name)
        if isinstance(value, np.ndarray) and field.name != "parents":
            cut[field.name] = value[rows, :width]
    return replace(example, arrays={name: array[rows, :width] for name, array in example.arrays.items()}, **cut)


def _column(samples: Sequence[Sample], name: str, lengths: list[int]) -> list[npt.NDArray[Any]]:
    """One array of every sample, each as long as its ids: otherwise the numbers of one sample would slip to the tokens of the next."""
    column = list(map(attrgetter(name), samples)) if name in _PADDING else [sample.arrays.get(name, _NOTHING) for sample in samples]
    found = list(map(len, column))
    if found != lengths:
        index = next(index for index, length in enumerate(lengths) if found[index] != length)
        raise ValueError(f"sample {index} ({samples[index].rollout_uid}) has {lengths[index]} ids but {found[index]} entries of {name!r}")
    return column


def _named(samples: Sequence[Sample], name: str, lengths: list[int]) -> npt.NDArray[Any]:
    """A further array, which all samples must have: a value made up for the others would be trained on."""
    column = _column(samples, name, lengths)
    return _flat(column, np.result_type(*{array.dtype for array in column}).type(0))


def _flat(column: list[npt.NDArray[Any]], padding: np.generic) -> npt.NDArray[Any]:
    """The arrays of all samples laid end to end, as the type of `padding`, and `padding` once behind them."""
    shape = column[0].shape[1:] if column else ()
    return np.concatenate([*column, np.broadcast_to(padding, (1, *shape))], dtype=padding.dtype, casting="same_kind")


def _is_sampled(versions: Int32Array, loss_mask: BoolArray) -> BoolArray:
    is_sampled: BoolArray = versions >= 0
    is_sampled |= loss_mask
    return is_sampled


def _of_nodes(layout: Layout, values_K: npt.NDArray[Any], padding: int) -> IntArray:
    """For each run the value of its node, `padding` for the padding."""
    return np.where(layout.node_J < 0, padding, values_K[layout.node_J]).astype(np.int64, copy=False)


def _segments(layout: Layout) -> IntArray:
    """Number of each run inside its row, from 1; 0 for the padding."""
    runs_before_R = before(np.bincount(layout.row_J, minlength=layout.num_rows))
    return np.where(layout.node_J < 0, 0, np.arange(1, len(layout.node_J) + 1) - runs_before_R[layout.row_J])


def _predecessors(trees: Forest, layout: Layout, is_padding: BoolArray) -> Int32Array:
    """The column before each token; for the first of a node the last column of its parent."""
    column_J = layout.column_J
    columns = np.tile(np.arange(-1, layout.width - 1, dtype=np.int32), (layout.num_rows, 1))
    is_first_J = layout.node_J >= 0
    parent_J = _of_nodes(layout, trees.parent_K, -1)
    last_of_parent_J = (column_J + layout.tokens_J - 1)[layout.run_K[parent_J]]
    columns[layout.row_J[is_first_J], column_J[is_first_J]] = np.where(parent_J < 0, -1, last_of_parent_J)[is_first_J]
    columns[is_padding] = -1
    return columns


def _parents(trees: Forest, layout: Layout, segment_J: IntArray) -> Int32Array:
    """(row, segment + 1) table of parents; 0 for roots."""
    parents = np.zeros((layout.num_rows, int(segment_J.max(initial=0)) + 1), dtype=np.int32)
    parent_J = _of_nodes(layout, trees.parent_K, -1)
    parents[layout.row_J, segment_J] = np.where(parent_J < 0, 0, segment_J[layout.run_K[parent_J]])
    return parents
