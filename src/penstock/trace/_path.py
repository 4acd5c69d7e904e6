"""The tokens on the way to a recorder's tip, in one piece."""

from __future__ import annotations

import numpy as np

from penstock.types import Int32Array

_FIRST_CAPACITY = 512


class PathIds:
    """Grows at its end and is never changed before it, so what was given out stays right. Costs what is added, however long it is."""

    __slots__ = ("_array", "_length", "new")

    def __init__(self) -> None:
        self._array: Int32Array = np.empty(_FIRST_CAPACITY, np.int32)
        self._length = 0
        self.new: list[Int32Array] = []
        """Tokens at the end that nobody has looked at yet: whoever records adds them here, and does not change them afterwards."""

    def ids(self) -> Int32Array:
        """All tokens: a view that nobody may write to."""
        if self.new:
            length = self._length + sum(map(len, self.new))
            if length > len(self._array):
                grown = np.empty(max(length, 2 * len(self._array)), np.int32)
                grown[: self._length] = self._array[: self._length]
                self._array = grown
            start = self._length
            for ids in self.new:
                stop = start + len(ids)
                self._array[start:stop] = ids
                start = stop
            self._length = length
            self.new.clear()
        view = self._array[: self._length]
        view.setflags(write=False)
        return view
