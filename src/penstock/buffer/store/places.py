"""Where a record lies: shelves of records, used for what is not durable yet and by stores that keep everything in memory.

A shelf holds what one look-up reads, as a mapping from a record's key on the shelf to the record. A rollout lies on two: it is asked for by its
uid and by its group.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from penstock.ledger.book import split_group_id
from penstock.types import (
    AnnotationRecord,
    ArchiveFile,
    ArrivedItem,
    CheckpointRecord,
    GroupRecord,
    GroupState,
    JournalEntry,
    LeaseRecord,
    MemberRecord,
    Moved,
    Outcome,
    Payload,
    Plan,
    Purpose,
    ReaderRecord,
    Record,
    RolloutRecord,
    RunRecord,
    SessionRecord,
    SpentGroups,
    TermRecord,
    Version,
)

Shelf = tuple[str, ...]
"""What is on it, the run, and the group or episode if it holds only what belongs to one."""
Place = tuple[Shelf, Hashable]
"""A shelf and a key on it."""
T = TypeVar("T")
_EMPTY: Mapping[Any, Any] = MappingProxyType({})


_PLACES: dict[type, Callable[[Any], tuple[Place, ...]]] = {
    RunRecord: lambda r: ((("run",), r.run),),
    GroupRecord: lambda r: ((("group", r.run), r.id),),
    MemberRecord: lambda r: ((("member", r.run, r.group_id), r.member),),
    RolloutRecord: lambda r: ((("rollout", r.run), r.uid), (("rollout", r.run, r.group_id), r.uid)),
    AnnotationRecord: lambda r: ((("annotation", r.run, r.group_id), (r.rollout_uid, r.name, r.step)),),
    SessionRecord: lambda r: ((("session", r.run), r.session),),
    TermRecord: lambda r: ((("term", r.run), 0),),
    Plan: lambda r: ((("plan", r.run), r.update),),
    Outcome: lambda r: ((("outcome", r.run), r.update),),
    Version: lambda r: ((("version", r.run), r.version),),
    CheckpointRecord: lambda r: ((("checkpoint", r.run), r.update),),
    Payload: lambda r: ((("payload", r.run), r.uid),),
    JournalEntry: lambda r: ((("journal", r.run, r.episode), r.index),),
    LeaseRecord: lambda r: ((("lease", r.run), r.lease),),
    ReaderRecord: lambda r: ((("reader", r.run), r.reader),),
    ArchiveFile: lambda r: ((("archive", r.run), r.number),),
    Moved: lambda r: ((("moved", r.run), r.uid),),
}


def places(record: Record) -> tuple[Place, ...]:
    """Every place of `record`; the first one is its key in the store.

    >>> places(JournalEntry(run="demo", episode="e7", index=2, body=b""))
    ((('journal', 'demo', 'e7'), 2),)
    """
    return _PLACES[type(record)](record)


def spread(records: Iterable[Record]) -> tuple[Record, ...]:
    """`records` with what stands for several others spelled out, for a store that keeps every noun by itself: items, and groups that a read took."""
    return tuple(chain.from_iterable(map(_spread, records)))


def _spread(record: Record) -> tuple[Record, ...]:
    if isinstance(record, ArrivedItem):
        return record.payload, record.rollout, record.slot
    if isinstance(record, SpentGroups):
        return tuple(record.after(group) for group in record.groups)
    return (record,)


def cursor(group_id: str) -> tuple[str, int, int] | None:
    """(source, pass, index) of a group id of that form, None for any other.

    >>> cursor("gsm8k/train/3/120")
    ('gsm8k/train', 3, 120)
    >>> cursor("held-out") is None
    True
    """
    source, place = split_group_id(group_id)
    return None if place is None else (source, *place)


def is_settled(group: GroupRecord) -> bool:
    """Whether nothing follows any more: it has ended, or it is for evaluation and has all it will have. Only such a group goes to the archive."""
    if group.state is GroupState.READY:
        return group.purpose is not Purpose.TRAIN
    return group.state in (GroupState.SPENT, GroupState.DROPPED)


def by_try(rollout: RolloutRecord) -> tuple[int, int, str]:
    """Order of the rollouts of a group."""
    return rollout.member, rollout.retry, rollout.uid


def by_subject(annotation: AnnotationRecord) -> tuple[str, str, int]:
    """Order of the annotations of a group; what is said of a whole rollout comes before what is said of its steps."""
    return annotation.rollout_uid, annotation.name, -1 if annotation.step is None else annotation.step


class Shelves(Generic[T]):
    """Values by place. Not safe for several threads."""

    def __init__(self) -> None:
        self._shelves: dict[Shelf, dict[Hashable, T]] = {}

    def put(self, place: Place, value: T) -> None:
        shelf, key = place
        self._shelves.setdefault(shelf, {})[key] = value

    def drop(self, place: Place) -> None:
        shelf, key = place
        held = self._shelves[shelf]
        del held[key]
        if not held:
            del self._shelves[shelf]

    def get(self, place: Place) -> T | None:
        held = self._shelves.get(place[0])
        return None if held is None else held.get(place[1])

    def shelf(self, shelf: Shelf) -> Mapping[Hashable, T]:
        """All on one shelf, in no order that means anything."""
        return self._shelves.get(shelf, _EMPTY)

    def names(self) -> tuple[Shelf, ...]:
        """Shelves that hold anything."""
        return tuple(self._shelves)

    def clear(self) -> None:
        self._shelves.clear()
