"""The buffer as a process: the real `Buffer` over a log on a fake disk, telling nothing before it is durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from penstock.buffer.core import Buffer, Pending
from penstock.buffer.store.protocol import Store
from penstock.errors import InputError, StoreError, UnknownError
from penstock.ledger import Ledger, imbalance
from penstock.testing.disk import FakeDisk
from penstock.testing.store import MemoryStore
from penstock.types import GroupState, Purpose, Record, TermRecord
from tests.simulation.clockwork import Answer, Call, Script
from tests.simulation.history import Violation
from tests.simulation.scenario import RUN
from tests.simulation.stage import Player, Stage

FENCED_VERBS = {"cut": 1, "record": 1, "fork": 1, "publish": 1, "keep": 2, "retire": 1}
"""Verbs that only the owner of the term may use, and where the term stands among their arguments."""


class WatchedStore(MemoryStore):
    """A store whose every submit is seen by the audit first."""

    def __init__(self, disk: FakeDisk, see: Callable[[Sequence[Record]], None]) -> None:
        super().__init__(disk)
        self._see = see
        self.num_submits = 0

    def submit(self, records: Sequence[Record]) -> Future[None]:
        self._see(records)
        self.num_submits += 1
        return super().submit(records)


class BufferActor(Player):
    """Answers requests; commits some milliseconds after the first one that waits; starts again from disk when the disk failed."""

    def __init__(self, name: str, stage: Stage, disk_seed: int) -> None:
        super().__init__(name, stage)
        self.disk = FakeDisk(disk_seed)

    def boot(self) -> None:
        self._booted_at = self.clock.now
        self._wall_at_boot = self.clock.now + self.stage.wall_offset_seconds
        self._waiting: list[tuple[Future[None], object, Answer]] = []
        self._commit_is_due = False
        self.broken = False
        self._num_checked = -1
        try:
            self.store = WatchedStore(self.disk, self.stage.audit.see)
        except StoreError as error:
            self.note(f"cannot start: {error}")
            self.up = False
            self.clock.after(0.5, self.start)
            return
        self.buffer = Buffer(self.store, self.store_clock)
        self._came_back()
        self.spawn(self._expire())

    def store_clock(self) -> float:
        """Seconds that go on evenly during a life, whatever the wall clock does."""
        return self._wall_at_boot + self.clock.now - self._booted_at

    @property
    def ledger(self) -> Ledger | None:
        """None if there is no run yet, or the store has failed and what is in memory counts for nothing."""
        try:
            return self.buffer.ledger(RUN)
        except (UnknownError, StoreError):
            return None

    def kill(self) -> None:
        super().kill()
        self.disk.crash()

    def receive(self, call: Call, answer: Answer) -> None:
        if self.broken:
            answer(StoreError("the store is being opened again"))
            return
        self.note(call.verb, *(value for value in call.args if isinstance(value, str)), *_names(call))
        try:
            reply, durable = self._do(call)
        except InputError as error:
            # A refusal may stand on what a crash would still undo, so it waits in line like any other answer.
            reply, durable = error, self.buffer.settled()
        except StoreError as error:
            answer(error)
            self._break(error)
            return
        self._check()
        if durable is not None and durable.done() and self.store.num_waiting and (isinstance(reply, InputError) or call.verb == "look"):
            raise Violation("E4", f"{call.verb} is answered with {reply}, which {self.store.num_waiting} decisions that a crash would undo may have made so")
        self._tell_when(durable, reply, answer)

    def _do(self, call: Call) -> tuple[object, Future[None] | None]:
        """The reply, and what it must wait for."""
        if call.verb == "look":
            return call.args[0](self.buffer.ledger(RUN)), self.buffer.settled()
        done = getattr(self.buffer, call.verb)(RUN, *call.args, **call.options)
        self._watch_term(call, done)
        return (done.reply, done.durable) if isinstance(done, Pending) else (done, None)

    def _watch_term(self, call: Call, done: Any) -> None:
        witness = self.stage.witness
        if call.verb == "take_term":
            term: TermRecord = done.reply
            witness.took_term(term.term, term.owner, call.options.get("replaces"), self.clock.now, self.stage.scenario.laws.term_seconds)
        elif call.verb == "renew_term":
            witness.heard_owner(self.clock.now)
        elif call.verb in FENCED_VERBS:
            witness.obeyed(call.verb, call.args[FENCED_VERBS[call.verb]])

    def _check(self) -> None:
        """D5, after everything that changed something."""
        if self._num_checked == self.store.num_submits:
            return
        self._num_checked = self.store.num_submits
        ledger = self.ledger
        if ledger is not None and imbalance(ledger):
            raise Violation("D5", f"the ledger is out of balance by {imbalance(ledger)}")

    def _tell_when(self, durable: Future[None] | None, reply: object, answer: Answer) -> None:
        if durable is None or (durable.done() and durable.exception() is None):
            answer(reply)
            return
        self._waiting.append((durable, reply, answer))
        if not self._commit_is_due:
            self._commit_is_due = True
            self.clock.after(self.rng.uniform(0.002, self.stage.scenario.commit_seconds), partial(self._commit, self.life))

    def _commit(self, life: int) -> None:
        if not self.up or life != self.life:
            return
        self.clock.num_events += 1
        self._commit_is_due = False
        self.store.sync_now()
        waiting, self._waiting = self._waiting, []
        for durable, reply, answer in waiting:
            error = durable.exception() if durable.done() else StoreError("not committed")
            answer(reply if error is None else error)
            if error is not None:
                self._break(error)

    def _break(self, error: BaseException) -> None:
        """Answer nothing until the store was opened again."""
        if not self.broken:
            self.broken = True
            self.note(f"commit failed: {error}")
            self.spawn(self._reopen())

    def _reopen(self) -> Script:
        while self.broken:
            yield self.rng.uniform(0.2, 1.0)
            try:
                self.buffer.reopen()
            except StoreError as error:
                self.note(f"the disk still refuses: {error}")
                continue
            self.broken = False
            self._came_back()

    def _came_back(self) -> None:
        self.note("open")
        self._num_checked = -1
        self.stage.audit.reload(self.store)
        term = self.stage.audit.term
        self.stage.witness.buffer_came_back(term.owner if term else None, self.clock.now)
        self._check()
        self.check_acknowledged(self.store)
        self.stage.witness.check_versions({number: version.digest for number, version in self.stage.audit.versions.items()})

    def check_acknowledged(self, store: Store) -> None:
        """D1: everything that somebody was told is in the store, byte for byte."""
        witness = self.stage.witness
        for uid, rollout in witness.acked.items():
            try:
                body = store.payload(RUN, uid).body
            except (UnknownError, StoreError) as error:
                raise Violation("D1", f"rollout {uid} was acknowledged and is gone ({error})", uid, rollout.group_id) from error
            if body != witness.sent[uid] or store.rollout(RUN, uid) is None:
                raise Violation("D1", f"rollout {uid} was acknowledged and is stored with other bytes", uid, rollout.group_id)
        for group_id in witness.opened:
            if store.group(RUN, group_id) is None:
                raise Violation("D1", f"group {group_id} was opened and is gone", group_id)
        for update, plan in witness.newest_plans.items():
            if store.plan(RUN, update) is None:
                raise Violation("E4", f"update {update} was cut for term {plan.term} and the plan is gone", f"update {update}")

    def _expire(self) -> Script:
        while True:
            yield 1.0
            if self.broken:
                continue
            try:
                for ended in self.buffer.expire():
                    self.note("lost", *(session.session for session in ended.reply))
                    self._tell_when(ended.durable, None, lambda _: None)
            except StoreError as error:
                self._break(error)
            self._check()


def _names(call: Call) -> tuple[object, ...]:
    """What a request is about, beside its plain arguments."""
    if call.verb in ("accept", "annotate"):
        written = call.args[0]
        return (written.group_id, getattr(written, "uid", ""), getattr(written, "rollout_uid", ""))
    if call.verb in FENCED_VERBS:
        return (f"update {call.args[0]}", f"term {call.args[FENCED_VERBS[call.verb]]}")
    return ()


def cursor_of(source: str) -> Callable[[Ledger], int]:
    """How many groups of a source were opened, as a look."""
    return lambda ledger: ledger.cursors.get(source, (0, -1))[1] + 1


def unscored(ledger: Ledger) -> list[tuple[str, str]]:
    """(group, rollout) that wait for an annotation, as a look."""
    return [
        (group.id, rollout.uid)
        for group in ledger.groups.values()
        if group.state in (GroupState.OPEN, GroupState.COMPLETE) and group.purpose is Purpose.TRAIN
        for rollout in ledger.rollouts_of.get(group.id, ())
        if rollout.status.usable and not any(uid == rollout.uid for uid, _, _ in ledger.annotations.get(group.id, {}))
    ]
