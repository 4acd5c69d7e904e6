"""What was submitted and is not in the tables yet, for look-ups that must see it."""

from __future__ import annotations

from typing import Any

from penstock.buffer.store._changes import ChangeSet
from penstock.buffer.store.places import Place, Shelf, Shelves, places
from penstock.types import ArrivedItem, Record


class Overlay:
    """Records of change sets under way, the newest of each key. Not safe for several threads."""

    def __init__(self) -> None:
        self._shelves: Shelves[tuple[ChangeSet, Record]] = Shelves()
        self._items: dict[tuple[str, str], ArrivedItem] = {}

    def put(self, change: ChangeSet, record: Record) -> None:
        """A record of `change` is to be seen."""
        if isinstance(record, ArrivedItem):
            self._items[record.run, record.uid] = record
            return
        for place in places(record):
            self._shelves.put(place, (change, record))

    def drop(self, change: ChangeSet) -> None:
        """`change` is in the tables, or never will be. What a later change set has put in place of its records stays."""
        for record in change.records:
            if isinstance(record, ArrivedItem):
                if self._items.get((record.run, record.uid)) is record:
                    del self._items[record.run, record.uid]
                continue
            for place in places(record):
                held = self._shelves.get(place)
                if held is not None and held[0] is change:
                    self._shelves.drop(place)

    def get(self, place: Place) -> Record | None:
        """The record at a place."""
        held = self._shelves.get(place)
        return None if held is None else held[1]

    def shelf(self, shelf: Shelf) -> dict[Any, Any]:
        """All records on a shelf, by key."""
        return {key: record for key, (_, record) in self._shelves.shelf(shelf).items()}

    def item(self, run: str, uid: str) -> ArrivedItem | None:
        """An item by its uid."""
        return self._items.get((run, uid))

    def items_of(self, run: str, group_id: str) -> list[ArrivedItem]:
        """Items of a group. Looks at all that are under way, of which there are few."""
        return [item for item in self._items.values() if item.group_id == group_id and item.run == run]
