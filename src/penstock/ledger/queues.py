"""The queue of groups that are ready: sorted, and cheap to take from at either end."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import overload

ReadyKey = tuple[int, int, str]
"""(oldest version, ready order, group id): the order in which groups are cut. -1 stands for groups without versions, which are never cut."""


class ReadyQueue(Sequence[ReadyKey]):
    """Sorted keys. Adding at the end and taking from the front or the end cost the same however long the queue is.

    >>> queue = ReadyQueue()
    >>> queue.add((0, 1, "b")); queue.add((0, 0, "a")); queue.remove((0, 0, "a"))
    >>> queue[0], len(queue)
    ((0, 1, 'b'), 1)
    """

    def __init__(self) -> None:
        self._keys: list[ReadyKey] = []
        self._start = 0
        """Keys before it were taken from the front; they are forgotten once they are half of the list."""

    def __len__(self) -> int:
        return len(self._keys) - self._start

    @overload
    def __getitem__(self, place: int) -> ReadyKey: ...

    @overload
    def __getitem__(self, place: slice) -> list[ReadyKey]: ...

    def __getitem__(self, place: int | slice) -> ReadyKey | list[ReadyKey]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return self._keys[self._start + place if place >= 0 else place]

    def __iter__(self) -> Iterator[ReadyKey]:
        return islice(self._keys, self._start, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadyQueue) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ReadyQueue({list(self)})"

    def first_from(self, version: int) -> int:
        """Place of the first key whose version is `version` or newer."""
        return bisect_left(self._keys, (version,), lo=self._start) - self._start

    def add(self, key: ReadyKey) -> None:
        """Put a key in its place."""
        insort(self._keys, key, lo=self._start)

    def remove(self, key: ReadyKey) -> None:
        """Take a key out. It must be there."""
        place = bisect_left(self._keys, key, lo=self._start)
        if place != self._start:
            del self._keys[place]
        else:
            self._take_first(1)

    def remove_all(self, group_ids: Sequence[str]) -> None:
        """Take the keys of many groups out. They must be there. Costs little if they are the first ones, in order."""
        if [key[2] for key in self._keys[self._start : self._start + len(group_ids)]] == group_ids:
            self._take_first(len(group_ids))
        else:
            gone = set(group_ids)
            self._keys = [key for key in self if key[2] not in gone]
            self._start = 0

    def _take_first(self, count: int) -> None:
        self._start += count
        if 2 * self._start > len(self._keys):
            del self._keys[: self._start]
            self._start = 0
