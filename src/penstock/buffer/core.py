"""The buffer without its sockets: laws over a store. The service and the simulation both drive this class.

Each verb decides at once, in memory, and gives a `Pending`: the reply, and a future that resolves when everything the reply stands on is
durable. Nobody may see the reply before. Since the store keeps the order of submits, a reply is never durable without what came before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from penstock import ledger as law
from penstock.buffer.batches import report_of
from penstock.buffer.store import Store
from penstock.buffer.stored import StoredGroup, opened
from penstock.errors import ConflictError, CorruptError, InputError, InvalidError, LimitError, StoreError, UnknownError
from penstock.ledger import Decision, Ledger, arrivals, arriving
from penstock.ledger.arrivals import ArrivalRules, Arrived, Item, Reading
from penstock.types import (
    AnnotationRecord,
    CheckpointRecord,
    CutRequest,
    GroupRecord,
    JournalEntry,
    Laws,
    LeaseRecord,
    LeaseRequest,
    Payload,
    Plan,
    Purpose,
    Record,
    RolloutRecord,
    RunRecord,
    SessionRecord,
    TermRecord,
    Version,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pending(Generic[T]):
    """A decided reply that may be told once `durable` resolves."""

    reply: T
    durable: Future[None]
    changed: bool
    """Whether anything is different now for those who wait."""


class Buffer:
    """Every verb of the buffer, for any number of runs.

    `now` is the store's clock: it must not run backwards, and is asked once per verb.
    """

    def __init__(
        self,
        store: Store,
        now: Callable[[], float],
        *,
        on_batch: Callable[[law.BatchReport], None] | None = None,
        at_turn_end: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`on_batch` hears of every batch that was made, once it is durable, on the thread that made it so.

        `at_turn_end` has something called when the caller's turn is over, before it waits for anything: what was decided in between is then given to
        the store as one change set. Without it every decision is one of its own.
        """
        self.store = store
        self._now = now
        self._on_batch = on_batch
        self._at_turn_end = at_turn_end
        self._is_turn = False
        self._ledgers: dict[str, Ledger] = {}
        self.lives = 1
        """How often the ledgers were loaded: whoever keeps something beside them must make it anew when this changes."""
        self._line: Future[None] = _DONE
        """The newest submit: when it is durable, so is everything before it."""
        self._load()

    def reopen(self) -> None:
        """After a failed commit: forget what is not durable and go on from disk. Raises `StoreError` while the disk refuses."""
        self.store.reopen()
        self._line = _DONE
        self.lives += 1
        self._ledgers.clear()
        self._load()

    def ledger(self, run: str) -> Ledger:
        """The ledger of a run, to look at. Raises `UnknownError` if there is none, and `StoreError` between a failed commit and `reopen`.

        Until then memory is ahead of the store: a rule that looked at both would see two different pasts.
        """
        failure = None
        if self._line is not _DONE and self._line.done():
            failure = self._line.exception()
            if failure is None:
                self._line = _DONE
        if failure is not None:
            raise failure if isinstance(failure, StoreError) else StoreError(f"the store refused a change that was decided: {failure}")
        found = self._ledgers.get(run)
        if found is None:
            raise UnknownError(f"no run {run}; known: {', '.join(sorted(self._ledgers)) or 'none'}")
        return found

    def runs(self) -> list[str]:
        """Names of the runs."""
        return sorted(self._ledgers)

    def settled(self) -> Future[None]:
        """Resolves when everything decided so far is durable.

        A refusal, or a look at the ledger, must wait for it before anybody is told: it may stand on a decision that a crash would undo.
        """
        return self._line

    def open_run(self, run: str, laws: Laws, initial_digest: str) -> Pending[RunRecord]:
        """See `ledger.open_run`."""
        decision = law.open_run(self._ledgers.get(run), run, laws, initial_digest, self._now())
        if run in self._ledgers:
            return self._submit(run, decision)
        self._ledgers[run] = Ledger(decision.reply)
        try:
            return self._submit(run, decision)
        except InputError:
            del self._ledgers[run]
            raise

    def open_group(
        self, run: str, group_id: str, *, environment: str, problem_id: str, purpose: Purpose, size: int, seed: int, first_estimate: int
    ) -> Pending[law.Opened]:
        """See `ledger.open_group`."""
        decision = law.open_group(
            self.ledger(run),
            self.store,
            group_id=group_id,
            environment=environment,
            problem_id=problem_id,
            purpose=purpose,
            size=size,
            seed=seed,
            first_estimate=first_estimate,
            now=self._now(),
        )
        return self._submit(run, decision)

    def open_session(self, run: str, session: str, worker: str) -> Pending[SessionRecord]:
        """See `ledger.open_session`."""
        return self._submit(run, law.open_session(self.ledger(run), session, worker, self._now()))

    def beat(self, run: str, session: str) -> SessionRecord:
        """See `ledger.beat`. Deadlines start anew when the store does, so a beat need not be durable."""
        return self._note(run, law.beat(self.ledger(run), session, self._now()))

    def claim(
        self, run: str, session: str, count: int, environments: Iterable[str] | None = None, *, number: int | None = None
    ) -> Pending[tuple[law.Slot, ...]]:
        """See `ledger.claim`."""
        return self._submit(run, law.claim(self.ledger(run), session, count, environments, self._now(), number=number))

    def release(self, run: str, session: str) -> Pending[SessionRecord]:
        """See `ledger.release`."""
        return self._submit(run, law.release(self.ledger(run), session, self._now()))

    def expire(self) -> list[Pending[tuple[SessionRecord, ...]]]:
        """End every session whose deadline has passed, in all runs."""
        done: list[Pending[tuple[SessionRecord, ...]]] = []
        for run, ledger in self._ledgers.items():
            while (decision := law.expire(ledger, self._now())).reply:
                done.append(self._submit(run, decision))
        return done

    def drop_torn(self) -> list[Pending[tuple[GroupRecord, ...]]]:
        """See `ledger.drop_torn`, in all runs."""
        decided = [(run, law.drop_torn(ledger, self._now())) for run, ledger in self._ledgers.items()]
        return [self._submit(run, decision) for run, decision in decided if decision.reply]

    def accept(self, run: str, rollout: RolloutRecord, payload: Payload) -> Pending[law.Accepted]:
        """See `ledger.accept`."""
        return self._submit(run, law.accept(self.ledger(run), self.store, rollout, payload, self._now()))

    def accept_all(self, run: str, writes: Sequence[tuple[RolloutRecord, Payload]]) -> Pending[tuple[law.Accepted | InputError, ...]]:
        """See `ledger.accept_all`. What the store refuses to take of them is refused one by one as well."""
        ledger = self.ledger(run)
        # A group that becomes ready may end an older one for whose room it asks: so where there is a capacity one is decided after the other.
        together = len(writes) if not ledger.laws.capacity_rollouts else 1
        answers: list[law.Accepted | InputError] = []
        changed = False
        while len(answers) < len(writes):
            some = writes[len(answers) : len(answers) + together]
            try:
                decided = self._submit(run, law.accept_all(ledger, self.store, some, self._now()))
            except LimitError as error:
                answers += [error] * len(some)
            except InputError as error:
                # One of them, and nothing of any was taken: the next look finds out which.
                answers += [error] if together == 1 else []
                together = 1
            else:
                answers += decided.reply
                changed |= decided.changed
        return Pending(tuple(answers), self._line, changed)

    def annotate(self, run: str, annotation: AnnotationRecord, payload: Payload) -> Pending[law.Annotated]:
        """See `ledger.annotate`."""
        return self._submit(run, law.annotate(self.ledger(run), self.store, annotation, payload, self._now()))

    def take_term(self, run: str, owner: str, checkpoint: int, *, resume: law.Resume = "replay", replaces: str | None = None) -> Pending[TermRecord]:
        """See `ledger.take_term`."""
        decision = law.take_term(self.ledger(run), self.store, owner, checkpoint, self._now(), resume=resume, replaces=replaces)
        return self._submit(run, decision)

    def renew_term(self, run: str, term: int) -> TermRecord:
        """See `ledger.renew_term`. Not durable, for the same reason as a beat."""
        return self._note(run, law.renew_term(self.ledger(run), term, self._now()))

    def cut(self, run: str, update: int, term: int, request: CutRequest) -> Pending[Plan | law.Wait]:
        """See `ledger.cut`."""
        return self._submit(run, law.cut(self.ledger(run), self.store, update, term, request, self._now()))

    def record(self, run: str, update: int, term: int, *, digest: str = "", skipped: str | None = None) -> Pending[law.Recorded]:
        """See `ledger.record`."""
        return self._submit(run, law.record(self.ledger(run), self.store, update, term, self._now(), digest=digest, skipped=skipped))

    def fork(self, run: str, update: int, term: int, digest: str) -> Pending[Version]:
        """See `ledger.fork`."""
        return self._submit(run, law.fork(self.ledger(run), update, term, digest, self._now()))

    def publish(self, run: str, version: int, term: int) -> Pending[Version]:
        """See `ledger.publish`."""
        return self._submit(run, law.publish(self.ledger(run), version, term))

    def keep(self, run: str, update: int, digest: str, term: int) -> Pending[CheckpointRecord]:
        """See `ledger.keep`."""
        return self._submit(run, law.keep(self.ledger(run), self.store, update, digest, term, self._now()))

    def retire(self, run: str, update: int, term: int) -> Pending[CheckpointRecord]:
        """See `ledger.retire`."""
        return self._submit(run, law.retire(self.ledger(run), update, term))

    def take_lease(self, run: str, lease: str, consumer: str, request: LeaseRequest) -> Pending[LeaseRecord | law.Wait]:
        """See `ledger.take_lease`."""
        return self._submit(run, law.take_lease(self.ledger(run), self.store, lease, consumer, request, self._now()))

    def renew_lease(self, run: str, lease: str, consumer: str, *, seconds: float | None = None) -> LeaseRecord:
        """See `ledger.renew_lease`. Not durable, for the same reason as a beat."""
        return self._note(run, law.renew_lease(self.ledger(run), self.store, lease, consumer, self._now(), seconds=seconds))

    def settle_lease(self, run: str, lease: str, consumer: str) -> Pending[LeaseRecord]:
        """See `ledger.settle_lease`."""
        return self._submit(run, law.settle_lease(self.ledger(run), self.store, lease, consumer, self._now()))

    def release_lease(self, run: str, lease: str, consumer: str) -> Pending[LeaseRecord]:
        """See `ledger.release_lease`."""
        return self._submit(run, law.release_lease(self.ledger(run), self.store, lease, consumer, self._now()))

    def expire_leases(self) -> list[Pending[tuple[LeaseRecord, ...]]]:
        """End every lease whose deadline has passed, in all runs."""
        decided = [(run, law.expire_leases(ledger, self._now())) for run, ledger in self._ledgers.items()]
        return [self._submit(run, decision) for run, decision in decided if decision.reply]

    def later_clocks(self, seconds: float) -> None:
        """Every deadline is later by a time in which nobody could be heard. Not durable, for the same reason as a beat."""
        for ledger in self._ledgers.values():
            ledger.apply(law.later_clocks(ledger, seconds))
            ledger.trays.later(seconds)

    def has(self, run: str) -> bool:
        """Whether the run was opened."""
        return run in self._ledgers

    def arrive(self, run: str, rules: ArrivalRules, item: Item) -> Pending[Arrived]:
        """See `ledger.arriving.arrive`."""
        ledger = self.ledger(run)
        return self._decided(ledger, arriving.arrive(ledger, self.store, rules, item, self._now()))

    def arrive_all(self, run: str, rules: ArrivalRules, items: Sequence[Item]) -> Pending[list[Arrived | InputError]]:
        """As `arrive` for each of `items`, one after the other; what would be raised for one of them stands in its place."""
        answers: list[Arrived | InputError] = []
        ledger = self.ledger(run)
        while len(answers) < len(items):
            rest = items[len(answers) :] if answers else items
            if ledger.laws.capacity_rollouts:
                # A group that becomes ready may end an older one for whose room it asks.
                answers.append(self._arrived(run, rules, rest[0]))
                continue
            try:
                decided = self._decided(ledger, arriving.arrive_all(ledger, self.store, rules, rest, self._now()))
                answers += decided.reply
            except InputError:
                # The store takes nothing of them: the next look finds out what it takes of each.
                decided = None
            if decided is None or not decided.reply:
                answers.append(self._arrived(run, rules, rest[0]))
        return Pending(answers, self._line, changed=True)

    def _arrived(self, run: str, rules: ArrivalRules, item: Item) -> Arrived | InputError:
        try:
            return self.arrive(run, rules, item).reply
        except InputError as error:
            return error

    def time_out(self, run: str, rules: ArrivalRules, environment: str) -> Pending[tuple[GroupRecord, ...]]:
        """See `ledger.arrivals.time_out`."""
        return self._submit(run, arrivals.time_out(self.ledger(run), rules, environment, self._now()))

    def read(self, run: str, reading: Reading, reader: str) -> Pending[LeaseRecord | None]:
        """See `ledger.arrivals.read`."""
        return self._submit(run, arrivals.read(self.ledger(run), self.store, reading, reader, self._now()))

    def append_journal(self, run: str, entries: Sequence[JournalEntry]) -> Pending[dict[str, int]]:
        """Append to the journals of episodes; the reply is how long each is now. The same entries again change nothing.

        Raises `InvalidError` for an entry that would leave a hole before it, `ConflictError` for one that is there with other content.
        """
        self.ledger(run)
        # Only what these can meet is looked at, and what they follow: an episode may be long, and its entries come one by one.
        firsts: dict[str, int] = {}
        for entry in entries:
            if entry.index >= 2**53:
                raise InvalidError(f"index: must fit in 53 bits, got {entry.index}")
            firsts[entry.episode] = min(entry.index, firsts.get(entry.episode, entry.index))
        tails = {episode: {found.index: found.body for found in self.store.journal(run, episode, max(0, first - 1))} for episode, first in firsts.items()}
        for entry in entries:
            tail = tails[entry.episode]
            if entry.index and entry.index - 1 not in tail:
                known = max(tail, default=len(self.store.journal(run, entry.episode)) - 1) + 1
                raise InvalidError(f"index: the journal of {entry.episode} has {known} entries, so the next is {known}, not {entry.index}")
            # What the store would refuse later would fail everything that was decided in the same turn.
            if tail.setdefault(entry.index, entry.body) != entry.body:
                raise ConflictError(f"entry {entry.index} of the journal of {entry.episode} is there with other content")
        return self._submit(run, Decision({episode: max(tail) + 1 for episode, tail in tails.items()}, tuple(entries)))

    def fetch(self, run: str, group_id: str, digest: str | None = None) -> StoredGroup:
        """A group with its bytes. Raises `CorruptError` if its content is not what `digest` (from a plan) says."""
        return opened(self.store, self.group(run, group_id), digest)

    def group(self, run: str, group_id: str) -> GroupRecord:
        """A group, ended or not. Raises `UnknownError` if there is none."""
        group = self.ledger(run).find_group(self.store, group_id)
        if group is None:
            raise UnknownError(f"no group {group_id}")
        return group

    def _load(self) -> None:
        for run in self.store.runs():
            snapshot = self.store.load(run.run)
            if snapshot is None:
                raise CorruptError(f"run {run.run} is listed but cannot be loaded")
            ledger = self._ledgers[run.run] = Ledger.load(snapshot)
            ledger.apply(law.restart_clocks(ledger, self._now()))
            ledger.trays.restart(self._now())
            self._count_new(ledger)

    def _count_new(self, ledger: Ledger) -> None:
        """Find again what was accepted since the last cut: the store's rollouts from the newest back to it."""
        # Without a learner nothing is cut, and everything that was ever written would be new.
        if ledger.term is not None:
            last_cut_at = ledger.plans[max(ledger.plans)].cut_at if ledger.plans else -math.inf
            for rollout in self.store.rollouts_since(ledger.run.run, last_cut_at):
                group = ledger.find_group(self.store, rollout.group_id)
                if group is not None:
                    ledger.pools.accept(group, rollout)

    def _submit(self, run: str, decision: Decision[T]) -> Pending[T]:
        return self._decided(self.ledger(run), decision)

    def _decided(self, ledger: Ledger, decision: Decision[T]) -> Pending[T]:
        if law.fills_a_pool(ledger, decision):
            decision = law.make_room(ledger, decision, self._now())
        if decision.records:
            report = None if self._on_batch is None else report_of(ledger, decision.records)
            submitted = self._line = self._given(decision.records)
            ledger.apply(decision.records)
            if report is not None:
                submitted.add_done_callback(partial(self._tell_batch, report))
        # An answer that changes nothing may still stand on something that is not durable yet: it waits for the newest submit.
        return Pending(decision.reply, self._line, changed=bool(decision.records))

    def _given(self, records: Sequence[Record]) -> Future[None]:
        """Give the store what was decided. Raises `InputError` if it takes nothing of it (a value it cannot keep, too much that waits)."""
        if self._at_turn_end is None:
            submitted = self.store.submit(records)
            refusal = submitted.exception() if submitted.done() else None
            if isinstance(refusal, InputError):
                raise refusal
            return submitted
        joined = self.store.join(records)
        if not self._is_turn:
            self._is_turn = True
            self._at_turn_end(self._end_turn)
        return joined

    def _end_turn(self) -> None:
        self._is_turn = False
        self.store.send()

    def _tell_batch(self, report: law.BatchReport, submitted: Future[None]) -> None:
        if self._on_batch is not None and submitted.exception() is None:
            self._on_batch(report)

    def _note(self, run: str, decision: Decision[T]) -> T:
        self.ledger(run).apply(decision.records)
        return decision.reply


def _resolved() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


_DONE = _resolved()
