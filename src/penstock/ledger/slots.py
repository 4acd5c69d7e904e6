"""Who works on which slot: worker sessions under a heartbeat, claims, and what happens to a slot whose worker is gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from penstock.errors import ConflictError, FencedError
from penstock.ledger.book import Decision, Ledger, is_free
from penstock.ledger.groups import settle
from penstock.ledger.states import move_member
from penstock.types import GroupRecord, HeldSlot, MemberRecord, MemberState, Record, SessionRecord
from penstock.types.frozen import changed
from penstock.wire import digest


@dataclass(frozen=True, slots=True)
class Slot:
    """Work that was handed out: fill `member` of `group` as try `retry`, sampling with `seed`."""

    group: GroupRecord
    member: int
    retry: int
    seed: int


def open_session(ledger: Ledger, session: str, worker: str, now: float) -> Decision[SessionRecord]:
    """Start a worker's session. The same session opened again by the same worker is renewed."""
    known = ledger.sessions.get(session)
    if known is not None and known.worker != worker:
        raise ConflictError(f"session {session} belongs to worker {known.worker}")
    expires_at = now + ledger.laws.session_seconds
    record = replace(known, expires_at=expires_at) if known else SessionRecord(run=ledger.run.run, session=session, worker=worker, expires_at=expires_at)
    return Decision(record, (record,))


def beat(ledger: Ledger, session: str, now: float) -> Decision[SessionRecord]:
    """The worker is alive. Raises `FencedError` if its session is over: its slots are others' by now."""
    record = replace(_alive(ledger, session), expires_at=now + ledger.laws.session_seconds)
    return Decision(record, (record,))


def claim(ledger: Ledger, session: str, count: int, environments: Iterable[str] | None, now: float, *, number: int | None = None) -> Decision[tuple[Slot, ...]]:
    """Hand out up to `count` slots to a session, oldest group first within an environment, environments in turn.

    `number` counts the claims of the session from 1, so that one may be repeated when its answer is lost: an older number hands out nothing new
    and gives the slots of that claim that are still to be filled. Without a number every claim is a new one.
    """
    known = _alive(ledger, session)
    if number is not None and number <= known.claims:
        held = [ledger.members[group_id][member] for group_id, member in ledger.claims[session]]
        return Decision(tuple(_slot(ledger, member) for member in held if member.claim == number))
    renewed = replace(known, claims=known.claims + 1 if number is None else number)
    names = sorted(ledger.free if environments is None else set(environments))
    queues = [_free_slots(ledger, name) for name in names]
    slots: list[Slot] = []
    records: list[Record] = [renewed]
    while queues and len(slots) < count:
        queue = queues.pop(0)
        member = next(queue, None)
        if member is None:
            continue
        queues.append(queue)
        records.append(changed(member, session=session, claim=renewed.claims, claimed_at=now))
        slots.append(_slot(ledger, member))
    # A claim that found nothing leaves no trace: it may be asked again, under the same number, as often as it takes.
    return Decision(tuple(slots), tuple(records) if slots else ())


def release(ledger: Ledger, session: str, now: float) -> Decision[SessionRecord]:
    """A worker leaves in good order: its slots are handed out again and count no failure. Leaving twice is fine."""
    known = ledger.sessions.get(session)
    if known is None:
        return Decision(SessionRecord(run=ledger.run.run, session=session, worker="", expires_at=now, ended=True))
    return _end_session(ledger, known, "worker_left", now)


def expire(ledger: Ledger, now: float) -> Decision[tuple[SessionRecord, ...]]:
    """End the sessions that were not heard of in time. Call it as the store's clock goes on."""
    ended: list[SessionRecord] = []
    records: list[Record] = []
    for session in list(ledger.sessions.values()):
        if session.expires_at <= now:
            decision = _end_session(ledger, session, "worker_lost", now)
            ended.append(decision.reply)
            records.extend(decision.records)
            # Two lost sessions may hold slots of one group: the second must see what the first did to it. One at a time; call again.
            break
    return Decision(tuple(ended), tuple(records))


def restart_clocks(ledger: Ledger, now: float) -> tuple[Record, ...]:
    """Deadlines anew after the store was down, so that nobody expires for having had nobody to talk to."""
    sessions = (replace(session, expires_at=now + ledger.laws.session_seconds) for session in ledger.sessions.values())
    leases = (replace(lease, expires_at=now + lease.seconds) for lease in ledger.leases.values())
    terms = () if ledger.term is None else (replace(ledger.term, expires_at=now + ledger.laws.term_seconds),)
    return (*sessions, *leases, *terms)


def later_clocks(ledger: Ledger, seconds: float) -> tuple[Record, ...]:
    """Deadlines later by a time in which nobody could be heard: it does not count."""
    sessions = (replace(session, expires_at=session.expires_at + seconds) for session in ledger.sessions.values())
    leases = (replace(lease, expires_at=lease.expires_at + seconds) for lease in ledger.leases.values())
    terms = () if ledger.term is None else (replace(ledger.term, expires_at=ledger.term.expires_at + seconds),)
    return (*sessions, *leases, *terms)


def slot_seed(group_seed: int, member: int, retry: int) -> int:
    """Seed of one try: a function of the three, spread over 63 bits."""
    return int(digest(f"{group_seed} {member} {retry}".encode())[:16], 16) >> 1


def hand_back(ledger: Ledger, member: MemberRecord, reason: str, *, failed: bool) -> MemberRecord:
    """The slot after a try that did not fill it: pending as the next retry, or failed when it was tried too often."""
    failures = member.failures + failed
    if failures > ledger.laws.max_retries:
        return move_member(member, MemberState.FAILED, session=None, failures=failures, reason=reason)
    return move_member(member, MemberState.PENDING, session=None, retry=member.retry + 1, failures=failures, reason=reason)


def _end_session(ledger: Ledger, session: SessionRecord, reason: str, now: float) -> Decision[SessionRecord]:
    freed: dict[str, list[MemberRecord]] = {}
    held: list[HeldSlot] = []
    for group_id, slot in ledger.claims.get(session.session, {}):
        member = ledger.members[group_id][slot]
        held.append(HeldSlot(group_id=group_id, member=slot, retry=member.retry, claimed_at=member.claimed_at))
        freed.setdefault(group_id, []).append(hand_back(ledger, member, reason, failed=reason == "worker_lost"))
    ended = replace(session, ended=True, ended_at=now, reason=reason, held=tuple(held))
    records: list[Record] = []
    for group_id, members in freed.items():
        records.extend(members)
        failed = sum(member.state is MemberState.FAILED for member in members)
        if failed:
            records.append(after_failures(ledger, ledger.groups[group_id], failed, now))
    return Decision(ended, (*records, ended))


def after_failures(ledger: Ledger, group: GroupRecord, failed: int, now: float) -> GroupRecord:
    """The group after `failed` of its pending members failed for good."""
    group = replace(group, pending=group.pending - failed)
    return settle(ledger, group, ledger.rollouts_of.get(group.id, ()), ledger.annotations.get(group.id, {}).values(), now)


def _alive(ledger: Ledger, session: str) -> SessionRecord:
    known = ledger.sessions.get(session)
    if known is None:
        raise FencedError(f"session {session} is over or was never opened; open a new one")
    return known


def _free_slots(ledger: Ledger, environment: str) -> Iterator[MemberRecord]:
    for group_id in ledger.free.get(environment, ()):
        yield from filter(is_free, ledger.members[group_id])


def _slot(ledger: Ledger, member: MemberRecord) -> Slot:
    group = ledger.groups[member.group_id]
    return Slot(group, member.member, member.retry, slot_seed(group.seed, member.member, member.retry))
