"""What is made of arrays again and again, remembered: for tokens that are sent thousands of times a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy.typing as npt

Made = TypeVar("Made")

MOST_NUMBERS = 256
"""In an array that is remembered: it is held for as long as what was made of it."""
MOST_ARRAYS = 4096


class OfFixedArrays(Generic[Made]):
    """A function of an array, worked out once for each short one that nobody can change any more.

    What a template writes around a message is sent with each like it, and a reply with a journal and with a rollout. Arrays are known by their place in
    memory. Each is held here, too, so that no other can take its place.
    """

    __slots__ = ("_known", "_make")

    def __init__(self, make: Callable[[npt.NDArray[Any]], Made]) -> None:
        self._make = make
        self._known: dict[int, tuple[npt.NDArray[Any], Made]] = {}

    def __call__(self, array: npt.NDArray[Any]) -> Made:
        """What is made of the array."""
        known = self._known.get(id(array))
        if known is not None:
            return known[1]
        made = self._make(array)
        if array.size <= MOST_NUMBERS and _is_fixed(array):
            if len(self._known) >= MOST_ARRAYS:
                self._known.clear()
            self._known[id(array)] = array, made
        return made


def _is_fixed(array: npt.NDArray[Any]) -> bool:
    """Whether nobody can change it: it is closed for writing, and looks at no memory of others that is not."""
    return not array.flags.writeable and (array.base is None or isinstance(array.base, bytes))
