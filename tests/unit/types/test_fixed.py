"""What is made of arrays is made once, and never of what they were before."""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt
import pytest

from penstock.types import Int32Array
from penstock.types.fixed import MOST_ARRAYS, MOST_NUMBERS, OfFixedArrays


def counted() -> tuple[OfFixedArrays[list[int]], list[Int32Array]]:
    """A function that lists the numbers of an array, and the arrays that it was worked out for."""
    asked: list[Int32Array] = []

    def numbers(array: npt.NDArray[np.int32]) -> list[int]:
        asked.append(array)
        return array.tolist()

    return OfFixedArrays(numbers), asked


def closed(array: Int32Array) -> Int32Array:
    array.setflags(write=False)
    return array


def test_of_an_array_that_nobody_can_change_it_is_made_once() -> None:
    numbers, asked = counted()
    array = closed(np.array([1, 2], np.int32))
    assert numbers(array) is numbers(array)
    of_bytes = np.frombuffer(b"\1\0\0\0", np.int32)
    assert numbers(of_bytes) == numbers(of_bytes) == [1]
    assert len(asked) == 2


@pytest.mark.parametrize("is_view", [False, True])
def test_of_an_array_that_somebody_can_change_it_is_made_anew(is_view: bool) -> None:
    numbers, _ = counted()
    array = np.array([1, 2], np.int32)
    seen = closed(array[:]) if is_view else array
    assert numbers(seen) == [1, 2]
    array[0] = 7
    assert numbers(seen) == [7, 2]


def test_an_array_in_the_place_of_another_is_not_taken_for_it() -> None:
    numbers: OfFixedArrays[list[int]] = OfFixedArrays(lambda array: array.tolist())  # which holds none of them itself
    for value in range(2 * MOST_ARRAYS):
        assert numbers(closed(np.array([value], np.int32))) == [value]


def test_arrays_are_let_go_once_there_are_many() -> None:
    numbers: OfFixedArrays[list[int]] = OfFixedArrays(lambda array: array.tolist())
    array = closed(np.zeros(1, np.int32))
    numbers(array)
    held = weakref.ref(array)
    del array
    assert held() is not None
    for _ in range(MOST_ARRAYS):
        numbers(closed(np.zeros(1, np.int32)))
    assert held() is None


def test_long_arrays_are_not_held() -> None:
    numbers, asked = counted()
    array = closed(np.zeros(MOST_NUMBERS + 1, np.int32))
    numbers(array), numbers(array)
    assert len(asked) == 2
