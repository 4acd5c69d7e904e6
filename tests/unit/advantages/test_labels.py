from collections.abc import Hashable

import numpy as np
import pytest

from penstock.advantages import grpo
from penstock.advantages._labels import groups_of

REWARDS = [1.0, 5.0, 3.0, 7.0]
PAIRED = [-1.0, -1.0, 1.0, 1.0]
"""Advantages when rows 0 and 2, and rows 1 and 3, are a group."""


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1, 0, 1],
        [-5, 10**15, -5, 10**15],
        [2**63 - 1, -(2**63), 2**63 - 1, -(2**63)],
        [2**80, 1, 2**80, 1],
        [True, False, True, False],
        ["a", "b", "a", "b"],
        [1, "1", 1, "1"],
        [(1, 2), (1, 3), (1, 2), (1, 3)],
        [None, "None", None, "None"],
        [0.5, 1.5, 0.5, 1.5],
        np.array([0, 1, 0, 1], dtype=np.uint8),
        np.array([127, -128, 127, -128], dtype=np.int8),
        np.array([2**64 - 1, 2**64 - 9, 2**64 - 1, 2**64 - 9], dtype=np.uint64),
        np.array([2**64 - 1, 0, 2**64 - 1, 0], dtype=np.uint64),
        np.array([True, False, True, False]),
        np.array(["a", "b", "a", "b"]),
        np.array([(1,), "x", (1,), "x"], dtype=object),
        iter(["p", "q", "p", "q"]),
    ],
)
def test_any_hashable_labels_group_rows(labels: list[Hashable]) -> None:
    assert grpo(REWARDS, labels, norm="mean_norm").tolist() == PAIRED


def test_labels_that_python_calls_equal_are_one_group() -> None:
    assert groups_of([1, 1.0, True, "1"], 4).sizes_P.tolist() == [3, 1]


def test_a_label_that_cannot_be_hashed_is_refused_with_its_row() -> None:
    with pytest.raises(ValueError, match=r"group\[1\] is \[2\], which is not hashable"):
        grpo([1.0, 2.0], ["a", [2]])  # type: ignore[list-item]


def test_a_nan_label_is_refused_with_its_row() -> None:
    with pytest.raises(ValueError, match=r"group\[2\] is nan, which does not equal itself"):
        grpo([1.0, 2.0, 3.0], [0.0, 1.0, float("nan")])


def test_labels_in_two_axes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"group must have one axis, got shape \(1, 2\)"):
        grpo([1.0, 2.0], np.array([[0, 1]]))


def test_stretches_are_whole_groups_and_hold_every_row_once() -> None:
    in_order = groups_of([5, 5, 5, 2, 9, 9, 9, 9, 1], 9)
    assert list(in_order.stretches(9)) == [slice(0, 9)]
    assert list(in_order.stretches(4)) == [slice(0, 4), slice(4, 8), slice(8, 9)]
    assert list(in_order.stretches(1)) == [slice(0, 3), slice(3, 4), slice(4, 8), slice(8, 9)]
    # Group by group, in the order of their numbers, each in the order of its rows.
    mixed = groups_of([1, 0, 2, 1, 0, 2, 2], 7)
    assert [np.arange(7)[rows].tolist() for rows in mixed.stretches(2)] == [[1, 4], [0, 3], [2, 5, 6]]


def test_the_order_of_many_groups_is_that_of_few() -> None:
    labels_N = np.random.default_rng(0).integers(0, 70_000, 80_000)
    labels_N[-1] = 70_000
    assert groups_of(labels_N, 80_000).order().tolist() == sorted(range(80_000), key=labels_N.tolist().__getitem__)


@pytest.mark.parametrize("labels", ["aa", b"aa", {0, 1}, {0: "a", 1: "b"}, 7, None])
def test_what_nobody_means_as_a_column_is_refused(labels: Hashable) -> None:
    with pytest.raises(ValueError, match=r"^group is .*; it must be a column with one entry per row"):
        grpo([1.0, 2.0], labels)  # type: ignore[arg-type]
