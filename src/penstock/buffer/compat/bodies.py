"""Bytes of items that wait to be read, kept in memory as far as there is room: most are read soon after they were written."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from penstock.buffer.store.protocol import StoredBody

_OVERHEAD_BYTES = 200
"""What keeping an item costs beside its bytes."""


class BodyCache:
    """By group. What does not fit is forgotten, whole groups at a time, the oldest first; the store has it."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._groups: OrderedDict[str, list[StoredBody]] = OrderedDict()
        self.num_bytes = 0

    def add(self, group_id: str, member: int, item: StoredBody) -> None:
        """Keep an item that was stored. Only of groups that are here from their first item."""
        known = self._groups.get(group_id)
        if known is None:
            if member:
                return
            known = self._groups[group_id] = []
        if len(known) != member:
            return
        known.append(item)
        self.num_bytes += len(item.body) + _OVERHEAD_BYTES
        while self.num_bytes > self._most_bytes:
            self._forget(next(iter(self._groups)))

    def get(self, group_id: str) -> Sequence[StoredBody]:
        """Items of a group by member; none if it is not here."""
        return self._groups.get(group_id, ())

    def drop(self, group_id: str) -> None:
        """Nobody will ask for the group again."""
        if group_id in self._groups:
            self._forget(group_id)

    def clear(self) -> None:
        """Forget everything: it may never have been stored."""
        self._groups.clear()
        self.num_bytes = 0

    def _forget(self, group_id: str) -> None:
        items = self._groups.pop(group_id)
        self.num_bytes -= sum([len(item.body) for item in items]) + _OVERHEAD_BYTES * len(items)
