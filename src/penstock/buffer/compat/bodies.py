"""Bytes of items that wait to be read, kept in memory as far as there is room: most are read soon after they were written."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

_OVERHEAD_BYTES = 100
"""What keeping an item costs beside its bytes."""


class BodyCache:
    """By group. What does not fit is forgotten, whole groups at a time, the oldest first; the store has it."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._groups: OrderedDict[str, list[bytes]] = OrderedDict()
        self.num_bytes = 0

    def add(self, group_id: str, member: int, body: bytes) -> None:
        """Keep an item that was stored. Only of groups that are here from their first item."""
        known = self._groups.get(group_id)
        if known is None:
            if member:
                return
            known = self._groups[group_id] = []
        if len(known) != member:
            return
        known.append(body)
        self.num_bytes += len(body) + _OVERHEAD_BYTES
        while self.num_bytes > self._most_bytes:
            self.take(next(iter(self._groups)))

    def get(self, group_id: str) -> Sequence[bytes]:
        """Items of a group by member; none if it is not here."""
        return self._groups.get(group_id, ())

    def take(self, group_id: str) -> Sequence[bytes]:
        """The same, and forget the group: nobody will ask for it again."""
        bodies = self._groups.pop(group_id, None)
        if bodies is None:
            return ()
        self.num_bytes -= sum(map(len, bodies)) + _OVERHEAD_BYTES * len(bodies)
        return bodies

    def clear(self) -> None:
        """Forget everything: it may never have been stored."""
        self._groups.clear()
        self.num_bytes = 0
