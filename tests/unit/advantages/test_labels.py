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
