"""What was submitted and is not in the tables yet, for look-ups that must see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from penstock.buffer.store._changes import ChangeSet
from penstock.buffer.store.places import Place, Shelf, Shelves, places
from penstock.types import ArrivedItem, GroupRecord, Record, SpentGroups


class Overlay:
    """Records of change sets under way, the newest of each key. Not safe for several threads.

    They are sorted in when somebody looks: nearly all are in the tables before anybody does.
    """

    def __init__(self) -> None:
        self._unsorted: dict[ChangeSet, list[Record]] = {}
        self._sorted: set[ChangeSet] = set()
        self._shelves: Shelves[tuple[ChangeSet, Record]] = Shelves()
        self._items: dict[tuple[str, str], ArrivedItem] = {}
        self._spent: dict[tuple[str, str], tuple[SpentGroups, dict[str, GroupRecord]]] = {}
        """By run and lease, with their groups by id as they were."""

    def put(self, change: ChangeSet, records: Iterable[Record]) -> None:
        """Records of `change` are to be seen."""
        self._unsorted.setdefault(change, []).extend(records)

    def _sort(self) -> None:
        for change, records in self._unsorted.items():
            self._sorted.add(change)
            for record in records:
                self._sort_in(change, record)
        self._unsorted.clear()

    def _sort_in(self, change: ChangeSet, record: Record) -> None:
        if isinstance(record, ArrivedItem):
            self._items[record.run, record.uid] = record
            return
        if isinstance(record, SpentGroups):
            self._spent[record.run, record.lease] = (record, {group.id: group for group in record.groups})
            return
        for place in places(record):
            self._shelves.put(place, (change, record))

    def drop(self, change: ChangeSet) -> None:
        """`change` is in the tables, or never will be. What a later change set has put in place of its records stays."""
        self._unsorted.pop(change, None)
        if change not in self._sorted:
            return
        self._sorted.remove(change)
        for record in change.records:
            if isinstance(record, ArrivedItem):
                if self._items.get((record.run, record.uid)) is record:
                    del self._items[record.run, record.uid]
                continue
            if isinstance(record, SpentGroups):
                self._spent.pop((record.run, record.lease), None)
                continue
            for place in places(record):
                held = self._shelves.get(place)
                if held is not None and held[0] is change:
                    self._shelves.drop(place)

    def get(self, place: Place) -> Record | None:
        """The record at a place."""
        self._sort()
        held = self._shelves.get(place)
        return None if held is None else held[1]

    def shelf(self, shelf: Shelf) -> dict[Any, Any]:
        """All records on a shelf, by key."""
        self._sort()
        return {key: record for key, (_, record) in self._shelves.shelf(shelf).items()}

    def group(self, run: str, group_id: str) -> GroupRecord | None:
        """A group by its id. Nothing is written of a group that was taken until it is in the tables."""
        self._sort()
        for spent, groups in self._spent.values():
            if spent.run == run and group_id in groups:
                return spent.after(groups[group_id])
        return cast("GroupRecord | None", self.get((("group", run), group_id)))

    def item(self, run: str, uid: str) -> ArrivedItem | None:
        """An item by its uid."""
        self._sort()
        return self._items.get((run, uid))

    def items_of(self, run: str, group_id: str) -> list[ArrivedItem]:
        """Items of a group. Looks at all that are under way, of which there are few."""
        self._sort()
        return [item for item in self._items.values() if item.group_id == group_id and item.run == run]
