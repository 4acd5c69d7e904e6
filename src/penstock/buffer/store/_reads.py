"""Queries of the SQLite store on one connection. A damaged row becomes a report and nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from penstock.buffer.store._items import ItemReads
from penstock.buffer.store._rows import (
    ANNOTATIONS,
    CHECKPOINTS,
    GROUPS,
    LEASES,
    MEMBERS,
    OUTCOMES,
    PLANS,
    READERS,
    ROLLOUTS,
    RUNS,
    SESSIONS,
    TERMS,
    VERSIONS,
    Row,
    Table,
)
from penstock.buffer.store.places import by_subject, by_try
from penstock.buffer.store.tallies import GroupCount, MemberCount, cursors, filled_members, tallies
from penstock.errors import CorruptError
from penstock.types import GroupRecord, GroupState, MemberState, Purpose, Snapshot, Tally

R = TypeVar("R")
Damaged = Callable[[str, str, str, CorruptError, object], None]
"""Told of kind, run, key, what is wrong, and the bytes."""

_FACT = "WHERE run = ? AND kind = ?"
_OF_GROWING = "WHERE run = ?1 AND group_id IN (SELECT id FROM groups WHERE run = ?1 AND state IN ('open', 'complete'))"
_LAST_FENCE = f"SELECT max(abs(live)) FROM facts {_FACT}"
_COUNT_GROUPS = """
SELECT state, environment, purpose, reason, source,
       count(*), max(cursor), max(ord), max(ready_ord), count(ready_tokens), sum(ready_tokens), sum(lost_longest), sum(filled)
FROM groups WHERE run = ? GROUP BY state, environment, purpose, reason, source
"""
_COUNT_ITEMS = "SELECT environment, failure, count(*) FROM items WHERE run = ? GROUP BY environment, failure"
_COUNT_MEMBERS = "SELECT state, environment, purpose, reason, count(*) FROM members WHERE run = ? GROUP BY state, environment, purpose, reason"


class Reads:
    """What can be asked of the tables through one connection."""

    def __init__(self, connection: sqlite3.Connection, damaged: Damaged) -> None:
        self._connection = connection
        self._damaged = damaged
        self.items = ItemReads(connection, damaged)

    def one(self, table: Table[R], where: str, values: Row) -> R | None:
        """The record, None if there is none. Raises `CorruptError` if it is damaged."""
        row = self._connection.execute(f"{table.select} {where}", values).fetchone()
        return None if row is None else self._open(table, row)

    def many(self, table: Table[R], where: str, values: Row) -> list[R]:
        """The records that are not damaged; the others are reported and left out."""
        records = []
        for row in self._connection.execute(f"{table.select} {where}", values):
            try:
                records.append(self._open(table, row))
            except CorruptError:
                continue
        return records

    def every(self, table: Table[R], where: str, values: Row) -> list[R]:
        """The records, of a kind that nobody may go on without. Raises `CorruptError` if one is damaged."""
        return [self._open(table, row) for row in self._connection.execute(f"{table.select} {where}", values)]

    def snapshot(self, run: str) -> Snapshot | None:
        """`Store.load`. The connection must be in a transaction."""
        record = self.one(RUNS, f"{_FACT} AND key = 0", (run, RUNS.kind))
        if record is None:
            return None
        groups = sorted(self.many(GROUPS, "WHERE run = ? AND state IN ('open', 'complete', 'ready', 'bound')", (run,)), key=lambda group: group.order)
        order = {group.id: group.order for group in groups}
        items = [item for item in self.items.many(_OF_GROWING, (run,)) if item.group_id in order]
        members = [member for member in self.many(MEMBERS, _OF_GROWING, (run,)) if member.group_id in order]
        members += [item.slot for item in items]
        rollouts = [rollout for rollout in self.many(ROLLOUTS, _OF_GROWING, (run,)) if rollout.group_id in order]
        rollouts += [item.rollout for item in items]
        annotations = [found for found in self.many(ANNOTATIONS, _OF_GROWING, (run,)) if found.group_id in order]
        checkpoints = self.many(CHECKPOINTS, f"{_FACT} AND live = 1 ORDER BY key", (run, CHECKPOINTS.kind))
        first_plan = checkpoints[-1].update - 1 if checkpoints else 0
        counts = [GroupCount(*row) for row in self._connection.execute(_COUNT_GROUPS, (run,))]
        return Snapshot(
            run=record,
            groups=tuple(groups),
            members=tuple(sorted(members, key=lambda member: (order[member.group_id], member.member))),
            rollouts=tuple(sorted(rollouts, key=lambda rollout: (order[rollout.group_id], *by_try(rollout)))),
            annotations=tuple(sorted(annotations, key=lambda found: (order[found.group_id], *by_subject(found)))),
            sessions=tuple(self.many(SESSIONS, f"{_FACT} AND live = 1 ORDER BY key", (run, SESSIONS.kind))),
            term=self.one(TERMS, f"{_FACT} AND key = 0", (run, TERMS.kind)),
            plans=tuple(self.every(PLANS, f"{_FACT} AND key >= ? ORDER BY key", (run, PLANS.kind, first_plan))),
            outcomes=tuple(self.every(OUTCOMES, f"{_FACT} ORDER BY key", (run, OUTCOMES.kind))),
            versions=tuple(self.every(VERSIONS, f"{_FACT} ORDER BY key", (run, VERSIONS.kind))),
            checkpoints=tuple(checkpoints),
            tallies=self._tallies(run, counts, groups),
            last_order=max((count.order for count in counts), default=-1),
            last_ready_order=max((count.ready_order for count in counts if count.ready_order is not None), default=-1),
            cursors=cursors(counts),
            leases=tuple(self.many(LEASES, f"{_FACT} AND live > 0 ORDER BY key", (run, LEASES.kind))),
            last_fence=self._connection.execute(_LAST_FENCE, (run, LEASES.kind)).fetchone()[0] or 0,
            readers=tuple(self.many(READERS, f"{_FACT} ORDER BY key", (run, READERS.kind))),
        )

    def _tallies(self, run: str, counts: list[GroupCount], live: list[GroupRecord]) -> dict[tuple[str, Purpose], Tally]:
        members = [MemberCount(*row) for row in self._connection.execute(_COUNT_MEMBERS, (run,))]
        for environment, failure, num_items in self._connection.execute(_COUNT_ITEMS, (run,)):
            state = MemberState.ACCEPTED if failure is None else MemberState.FAILED
            members.append(MemberCount(state=state, environment=environment, purpose=Purpose.TRAIN, reason=failure, num_members=num_items))
        for count in counts:
            members += filled_members(count.environment, count.purpose, count.num_filled or 0)
        for group in live:
            if group.state is GroupState.OPEN:
                members += filled_members(group.environment, group.purpose, group.filled)
        try:
            return tallies(counts, members)
        except ValueError as error:
            raise CorruptError(f"the counts of run {run!r} name a state that does not exist: {error}; an index is damaged, REINDEX mends it") from error

    def _open(self, table: Table[R], row: Row) -> R:
        try:
            return table.record(row)
        except CorruptError as error:
            self._damaged(table.kind, str(row[0]), table.key_text(row), error, row[-1])
            raise
