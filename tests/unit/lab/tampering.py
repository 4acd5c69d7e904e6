"""Changes the archive of a run behind its back, with all checksums in order, as somebody would who wants to get away with it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from penstock.buffer.intake import decode_rollout, rollout_intake
from penstock.buffer.store import SqliteStore
from penstock.ledger.groups import content_digest
from penstock.types import GroupRecord, Payload, Plan, PlannedGroup, Record, RolloutRecord, Source
from penstock.wire import encode_msgpack


class Forger:
    """Has the store of one run open for writing. Use it as a context."""

    def __init__(self, run_dir: Path, run: str) -> None:
        self._path = run_dir / "buffer" / "store.sqlite"
        self._run = run
        self.store = SqliteStore(self._path)

    def __enter__(self) -> Forger:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def put(self, *records: Record) -> None:
        """Put records in the place of those that are there."""
        for record in records:
            if isinstance(record, Payload):
                self.sql("DELETE FROM payloads WHERE run = ? AND uid = ?", record.run, record.uid)
        self.store.submit(records).result()

    def sql(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self._path, timeout=30)) as connection, connection:
            connection.execute(statement, values)

    def planned(self, update: int) -> tuple[Plan, GroupRecord, RolloutRecord]:
        """The plan of an update, its first group, and that group's first rollout."""
        plan = self.store.plan(self._run, update)
        assert plan is not None
        group = self.store.group(self._run, plan.groups[0].id)
        assert group is not None
        return plan, group, self.store.rollouts(self._run, group.id)[0]

    def exchanged(self, rollout: RolloutRecord) -> tuple[RolloutRecord, Payload]:
        """The rollout with another first sampled token, and everything about it that follows from that."""
        payload = self.store.payload(self._run, rollout.uid)
        known = decode_rollout(payload.body, payload.content_type)
        segments = list(known.trace.segments)
        place = next(place for place, segment in enumerate(segments) if segment.source is Source.SAMPLED)
        ids = segments[place].ids.copy()
        ids[0] = (ids[0] + 1) % 256
        segments[place] = replace(segments[place], ids=ids)
        body = encode_msgpack(replace(known, trace=replace(known.trace, segments=tuple(segments))))
        record, other = rollout_intake(self._run, body, "msgpack")
        return replace(record, stored_at=rollout.stored_at), other

    def exchanged_throughout(self, update: int) -> tuple[Record, ...]:
        """A plan with one rollout exchanged, down to the last digest."""
        plan, group, rollout = self.planned(update)
        record, payload = self.exchanged(rollout)
        held = [record if held.uid == record.uid else held for held in self.store.rollouts(self._run, group.id) if held.status.usable]
        group = replace(group, digest=content_digest(held, ()))
        plan = replace(plan, groups=(PlannedGroup(id=group.id, digest=group.digest), *plan.groups[1:]))
        return payload, record, group, plan
