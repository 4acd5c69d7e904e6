"""Anchor states: which steps of a group were taken from the same state, exactly or nearly."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.advantages._columns import in_range, rows_of
from penstock.advantages._labels import Groups, IntpArray, groups_of, numbered
from penstock.advantages._observations import anchor_key
from penstock.types import BoolArray

Anchors = npt.NDArray[Any] | Iterable[Any]
"""One observation per row: text, or anything JSON-like. None: the step has no anchor."""


def anchored(anchor: Anchors, groups: Groups, *, similarity: float | None = None) -> tuple[IntpArray, BoolArray]:
    """For each row the number of its anchor, for `Groups.split_by`, and whether it has one.

    `similarity`: None, or a threshold from 0 to 1 from which on texts count as the same state (see `first_fit`); observations that are not text
    are then compared as canonical JSON. ValueError names the row of an anchor that is not JSON-like.
    """
    column = _observations(anchor, len(groups.index_N))
    if similarity is not None:
        in_range(similarity, 0.0, 1.0, name="similarity")
        return _similar(_keys(column), groups, similarity)
    return _exact(column)


def anchored_by_keys(keys: list[Hashable]) -> tuple[IntpArray, BoolArray]:
    """As `anchored`, of what `anchor_key` gave for each row."""
    return _present(*numbered(keys))


def _present(index_N: IntpArray, number: dict[Hashable, int]) -> tuple[IntpArray, BoolArray]:
    none = number.get(None)
    return index_N, np.ones(len(index_N), dtype=np.bool_) if none is None else np.asarray(index_N != none, dtype=np.bool_)


def _observations(anchor: Anchors, num_rows: int) -> npt.NDArray[Any] | list[Any]:
    """Integers in an array, or anything in a list, one per row."""
    column: npt.NDArray[Any] | list[Any]
    if isinstance(anchor, np.ndarray) and anchor.ndim == 1:
        column = anchor if anchor.dtype.kind in "iub" else anchor.tolist()
    else:
        column = anchor if isinstance(anchor, list) else rows_of(anchor, name="anchor")
    if len(column) != num_rows:
        raise ValueError(f"anchor has {len(column)} observations for {num_rows} rows; there must be one per row")
    return column


def _exact(column: npt.NDArray[Any] | list[Any]) -> tuple[IntpArray, BoolArray]:
    if isinstance(column, list):
        try:
            index_N, number = numbered(column)
        except TypeError:
            number = {0: 0}
        # Only text equals text, so if the distinct ones are text all are; of others a dict would take 1, 1.0 and True for one.
        if all(type(key) in (str, NoneType) for key in number):
            return _present(index_N, number)
    keys = _keys(column)
    if isinstance(keys, np.ndarray):
        return groups_of(keys, len(keys), name="anchor").index_N, np.ones(len(keys), dtype=np.bool_)
    return anchored_by_keys(keys)


def _keys(column: npt.NDArray[Any] | list[Any]) -> npt.NDArray[Any] | list[Hashable]:
    """Integers in an array, or keys in a list."""
    if isinstance(column, np.ndarray):
        return column
    kinds = set(map(type, column))
    if kinds <= {str, NoneType}:
        return column
    if kinds in ({int}, {bool}) and all(-(2**63) <= value < 2**63 for value in (min(column), max(column))):
        return np.array(column, dtype=np.int64)
    return [_key_of_row(observation, row) for row, observation in enumerate(column)]


def _key_of_row(observation: Any, row: int) -> Hashable:
    try:
        return anchor_key(observation)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"anchor[{row}] is {observation!r:.80}, which cannot be compared: {error}") from None


def _similar(keys: npt.NDArray[Any] | list[Hashable], groups: Groups, threshold: float) -> tuple[IntpArray, BoolArray]:
    texts = [_text(key) for key in (keys.tolist() if isinstance(keys, np.ndarray) else keys)]
    cluster_N = np.full(len(texts), -1, dtype=np.intp)  # -1: no anchor
    rows_by_group = np.split(groups.order(), np.cumsum(groups.sizes_P)[:-1])
    for rows in rows_by_group:
        said = [(int(row), text) for row in rows if (text := texts[row]) is not None]
        distinct = list(dict.fromkeys(text for _, text in said))
        cluster_of = dict(zip(distinct, first_fit(distinct, threshold).tolist(), strict=True))
        for row, text in said:
            cluster_N[row] = cluster_of[text]
    return cluster_N, np.asarray(cluster_N >= 0, dtype=np.bool_)


def _text(key: Hashable) -> str | None:
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, tuple):
        return str(key[0].hex())
    return key.decode("utf-8", "surrogatepass") if isinstance(key, bytes) else str(key)


def first_fit(texts: Sequence[str], threshold: float) -> IntpArray:
    """Clusters of different texts: each goes to the first cluster whose first member it resembles, else it opens one.

    Two texts resemble each other if their normalised Indel similarity, `1 - (insertions + deletions) / (both lengths)`, is at least `threshold`. (That is
    2 LCS / (both lengths), which `difflib` only approximates from below, and which does not depend on the order of the two.)

    >>> first_fit(["you see a red mug", "a dog", "you see a red rug"], 0.9)
    array([0, 1, 0])
    """
    from rapidfuzz.distance import Indel  # loads for whoever asks for similarity, not for every import of this package
    from rapidfuzz.process import cdist

    lengths_D = np.fromiter(map(len, texts), np.int64, len(texts))
    cluster_D = np.full(len(texts), -1, dtype=np.intp)
    left = np.arange(len(texts))
    num_clusters = 0
    # By clusters instead of by texts: all that resemble the first one left would have chosen it, since what came before resembles none of them.
    while len(left):
        head = int(left[0])
        # Edits instead of ratios, so that a text exactly at the threshold is in, whatever a ratio rounds to.
        edits = np.floor((1.0 - threshold) * (lengths_D[left] + lengths_D[head]) + 1e-9)
        near_enough = np.abs(lengths_D[left] - lengths_D[head]) <= edits
        near, edits = left[near_enough], edits[near_enough]
        distances = cdist([texts[head]], [texts[other] for other in near], scorer=Indel.distance, score_cutoff=int(edits.max()), dtype=np.int32)[0]
        cluster_D[near[distances <= edits]] = num_clusters
        left = left[cluster_D[left] < 0]
        num_clusters += 1
    return cluster_D
