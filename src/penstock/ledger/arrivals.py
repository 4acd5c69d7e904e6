"""Groups that nobody opens: items of an instance form groups in the order of their arrival.

The first `group_size` items of an instance, by distinct uid, are its pass 0, the next ones pass 1, and so on; a group's id is `instance/pass`. A
member is issued when its item arrives and settled at once. Credits and versions do not apply: the items' tokens are not ours.

    open --enough items--> ready --read--> spent           (complete, ready and bound are passed through in one decision)
    open --silence-------> ready, or dropped(timeout)       if there are too few
    ready --read---------> dropped(reason)                  if the reader's rules refuse it

The group's record is written when it is opened and when its state changes, not with every item.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from penstock.errors import ConflictError, InvalidError
from penstock.ledger.book import Decision, Ledger, Past
from penstock.ledger.leases import find_lease, new_lease
from penstock.ledger.states import move_group
from penstock.ledger.trays import Tray
from penstock.types import (
    Arrival,
    ArrivedItem,
    GroupRecord,
    GroupState,
    LeaseRecord,
    LeaseState,
    Purpose,
    ReaderRecord,
    RolloutRecord,
    SpentGroups,
)
from penstock.types.frozen import quickly_made
from penstock.wire import digest

# Asked for with every group of a read, and an enum takes its time to name a member.
_OPEN, _READY = GroupState.OPEN, GroupState.READY

TIMED_OUT_AT_ONCE = 256
"""Groups that one decision of `time_out` may end, so that no decision is long."""


class ArrivalPast(Past, Protocol):
    """Look-ups that arrivals need beside the others. A store is one."""

    def rollouts(self, run: str, group_id: str) -> tuple[RolloutRecord, ...]:
        """What is stored of a group, by member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalRules:
    """When a group that is formed by arrival is finished."""

    group_size: int = 8
    """Items of one pass."""
    min_valid_group_size_ratio: float = 1.0
    """A group is finished with `int(group_size * ratio)` items; it takes the others until it is read."""
    group_timeout_seconds: float = 300.0
    """A group that gets no item for so long is finished too."""
    min_timeout_group_size_ratio: float = 0.7
    """What it then needs of `group_size`, or else it is dropped."""

    def __post_init__(self) -> None:
        if not 1 <= self.group_size < 2**20:
            raise InvalidError(f"group_size: must be 1 to {2**20 - 1}, got {self.group_size}")
        for name in ("min_valid_group_size_ratio", "min_timeout_group_size_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidError(f"{name}: must be 0 to 1, got {getattr(self, name)}")
        if not 0 < self.group_timeout_seconds <= 1e9:
            raise InvalidError(f"group_timeout_seconds: must be above 0, got {self.group_timeout_seconds}")

    @property
    def min_valid_group_size(self) -> int:
        """Items that finish a group, as hooks are told."""
        return int(self.group_size * self.min_valid_group_size_ratio)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What the laws look at of an item."""

    uid: str
    instance: str
    """As it was written."""
    problem_id: str
    """The instance as an id."""
    environment: str
    reward: float | None
    kept: bool
    """Whether the default filter keeps it."""
    body: bytes
    digest: str

    @property
    def failure(self) -> str | None:
        """Why it counts as failed, if it does: generators mark failures by no reward or one below 0."""
        if self.reward is None:
            return "null_reward"
        return "negative_reward" if self.reward < 0 else None


class Arrived(NamedTuple):
    """Answer to an item (`arriving.arrive`)."""

    item: ArrivedItem | None
    """As it is stored now; None for one that was stored before: nothing has changed."""
    late: bool = False
    """Its pass was closed: it is stored and counts as failed (`late`)."""
    finished: GroupRecord | None = None
    """The group, if this item finished it."""

    @property
    def duplicate(self) -> bool:
        """Whether the same item was stored before."""
        return self.item is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a reader has decided to do with ready groups."""

    read_id: str
    served: Sequence[str] = ()
    """Groups that it takes, in order."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Groups that it refuses, with the reason."""
    num_items: int = 0
    """Items that it is given, copies included."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What it needs to make the same reply again."""


def check_together(ledger: Ledger, past: Past, items: Sequence[Item]) -> None:
    """Raise the `ConflictError` that `arriving.arrive` would raise for one of these, before any of them is stored."""
    given: dict[str, str] = {}
    for item in items:
        known = ledger.find_rollout(past, item.uid)
        stored = given.setdefault(item.uid, item.digest) if known is None else known.digest
        if stored != item.digest:
            raise conflict(item, stored)


def conflict(item: Item, stored: str) -> ConflictError:
    """The refusal of an item whose uid is stored with other bytes."""
    return ConflictError(f"item {item.uid} is stored with digest {stored}, not {item.digest}")


def time_out(ledger: Ledger, rules: ArrivalRules, environment: str, now: float) -> Decision[tuple[GroupRecord, ...]]:
    """Finish the environment's open groups that got no item for too long: ready, or dropped if they have too few. Call it again while it gives any."""
    ended: list[GroupRecord] = []
    for group_id, tray in ledger.trays.by_environment.get(environment, {}).items():
        if tray.last_write_at + rules.group_timeout_seconds > now or len(ended) == TIMED_OUT_AT_ONCE:
            break
        group = finished(ledger, ledger.groups[group_id], now, ready_order=ledger.last_ready_order + 1 + len(ended), timed_out=True)
        if len(tray.rewards) / group.size < rules.min_timeout_group_size_ratio:
            group = move_group(group, GroupState.DROPPED, reason="timeout", ended_at=now)
        ended.append(group)
    return Decision(tuple(ended), tuple(ended))


def read(ledger: Ledger, past: Past, reading: Reading, reader: str, now: float) -> Decision[LeaseRecord | None]:
    """Give groups to `reader` for good, under the lease `reading.read_id`, and drop those that its rules refuse.

    None if nothing is served: the reader has come no further, but what was refused is dropped all the same.
    """
    if reading.served and find_lease(ledger, past, reading.read_id) is not None:
        raise ConflictError(f"read {reading.read_id} was made before; a new one needs a new id")
    ready_orders = itertools.count(ledger.last_ready_order + 1)
    dropped = [
        move_group(_closed(ledger, group_id, ready_orders, now), GroupState.DROPPED, reason=reason, ended_at=now)
        for group_id, reason in reading.dropped.items()
    ]
    groups = [_closed(ledger, group_id, ready_orders, now) for group_id in reading.served]
    if not groups:
        return Decision(None, tuple(dropped))
    known = ledger.groups
    taken = SpentGroups(run=ledger.run.run, lease=reading.read_id, spent_at=now, groups=tuple([group for group in groups if known[group.id] is group]))
    # Those that were open until now are written whole, since they are stored without their rewards.
    spent = [taken.after(group) for group in groups if known[group.id] is not group] if len(taken.groups) < len(groups) else []
    lease = replace(new_lease(ledger, reading.read_id, reader, groups, 0.0, now), state=LeaseState.SETTLED, ended_at=now, facts=reading.facts)
    before = ledger.readers.get(reader) or ReaderRecord(run=ledger.run.run, reader=reader)
    after = replace(
        before, read_id=reading.read_id, read_at=now, ready_order=next(ready_orders) - 1, reads=before.reads + 1, items=before.items + reading.num_items
    )
    return Decision(lease, (*dropped, *spent, taken, lease, after))


def finished(ledger: Ledger, group: GroupRecord, now: float, *, ready_order: int, timed_out: bool = False) -> GroupRecord:
    """An open group with what has arrived so far, ready."""
    tray = ledger.trays.of(group)
    return made_ready(group, replace(_arrival(group, tray), timed_out=timed_out), tray.lines, now, ready_order)


def _arrival(group: GroupRecord, tray: Tray) -> Arrival:
    instance = group.arrival.instance if group.arrival else ""
    return Arrival(instance=instance, rewards=tuple(tray.rewards), refused=tuple(tray.refused), num_bytes=tray.num_bytes)


def enough(rules: ArrivalRules, group: GroupRecord) -> int:
    """Items that finish the group."""
    return max(1, int(group.size * rules.min_valid_group_size_ratio))


def made_ready(group: GroupRecord, arrival: Arrival, lines: Sequence[str], now: float, ready_order: int) -> GroupRecord:
    """An open group with all that has arrived, ready."""
    return move_group(
        group,
        GroupState.COMPLETE,
        GroupState.READY,
        usable=len(lines),
        digest=digest("\n".join(lines).encode()),
        completed_at=now,
        ready_at=now,
        ready_order=ready_order,
        arrival=arrival,
    )


def settled_item(ledger: Ledger, group_id: str, member: int, item: Item, now: float, failure: str | None) -> ArrivedItem:
    """The item as member of a group: accepted, or failed for a reason."""
    return ArrivedItem(
        run=ledger.run.run,
        uid=item.uid,
        group_id=group_id,
        member=member,
        environment=item.environment,
        problem_id=item.problem_id,
        reward=item.reward,
        failure=failure,
        kept=item.kept,
        stored_at=now,
        num_bytes=len(item.body),
        digest=item.digest,
        body=item.body,
    )


def new_group(ledger: Ledger, rules: ArrivalRules, item: Item, number: int, order: int, now: float) -> GroupRecord:
    """The group that `item` opens, as pass `number` of its instance."""
    return GroupRecord(
        run=ledger.run.run,
        id=f"{item.problem_id}/{number}",
        environment=item.environment,
        problem_id=item.problem_id,
        purpose=Purpose.TRAIN,
        size=rules.group_size,
        seed=0,
        state=GroupState.OPEN,
        order=order,
        opened_at=now,
        arrival=Arrival(instance=item.instance),
    )


def newest_pass(ledger: Ledger, past: ArrivalPast, item: Item) -> tuple[GroupRecord | None, int]:
    """The instance's last pass in its environment, if any, and how many passes it has in all. None of them takes items any more."""

    def find(number: int) -> GroupRecord | None:
        return ledger.find_group(past, f"{item.problem_id}/{number}")

    if find(0) is None:
        return None, 0
    # Passes have no gaps: double until one is missing, then halve.
    known, missing = 0, 1
    while find(missing) is not None:
        known, missing = missing, 2 * missing
    while missing - known > 1:
        middle = (known + missing) // 2
        known, missing = (known, middle) if find(middle) is None else (middle, missing)
    for number in range(known, -1, -1):
        group = find(number)
        if group is not None and group.environment == item.environment and group.arrival is not None:
            return group, missing
    return None, missing


def _closed(ledger: Ledger, group_id: str, ready_orders: Iterator[int], now: float) -> GroupRecord:
    """A group that takes no more items, ready to be bound or dropped. Raises `ConflictError` if somebody else has it."""
    group = ledger.groups.get(group_id)
    if group is None or group.arrival is None or (group.state is not _READY and group.state is not _OPEN):
        raise ConflictError(f"group {group_id} is {'gone' if group is None else group.state}; it cannot be read")
    return group if group.state is _READY else finished(ledger, group, now, ready_order=next(ready_orders))
