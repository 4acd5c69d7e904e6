"""Records to put in a store, and the ground that it stands on, for the contracts that every store keeps."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from penstock.buffer.store import Store
from penstock.types import (
    AnnotationRecord,
    ArrivedItem,
    CheckpointRecord,
    CutRequest,
    GroupRecord,
    GroupState,
    JournalEntry,
    Laws,
    LeaseRecord,
    LeaseState,
    MemberRecord,
    MemberState,
    Outcome,
    Payload,
    Plan,
    PlannedGroup,
    Purpose,
    ReaderRecord,
    Record,
    RolloutRecord,
    RolloutStatus,
    RunRecord,
    SessionRecord,
    TermRecord,
    Version,
)
from penstock.wire import digest


class Rig(Protocol):
    """A store and the ground it stands on."""

    def open(self) -> Store:
        """The store as the disk has it. One at a time."""

    def settle(self, store: Store) -> None:
        """Return when all that was submitted is durable or has failed."""

    def hold(self, store: Store) -> AbstractContextManager[None]:
        """Nothing becomes durable inside."""

    def crash(self, store: Store) -> None:
        """Take the store away without a word, as a kill or a power loss does."""

    def fill(self, store: Store) -> None:
        """From now on the disk has no space."""

    def refuse_syncs(self, store: Store) -> None:
        """From now on a sync fails."""

    def heal(self) -> None:
        """The disk works again, once the store is reopened."""

    def flip(self, needle: bytes) -> None:
        """Damage the first of the stored bytes that spell `needle`. The store must be closed."""


RUN = RunRecord(run="demo", laws=Laws(max_lag=2, fractions={"digits": 0.5}), opened_at=1.5)


def group(index: int, state: GroupState = GroupState.OPEN, **changes: Any) -> GroupRecord:
    fields = {"run": "demo", "id": f"src/0/{index}", "environment": "digits", "problem_id": f"p{index}", "purpose": Purpose.TRAIN, "size": 2, "seed": 7}
    return GroupRecord(**(fields | {"state": state, "order": index} | changes))


def member(group_index: int, number: int, state: MemberState = MemberState.PENDING, **changes: Any) -> MemberRecord:
    return MemberRecord(**({"run": "demo", "group_id": f"src/0/{group_index}", "member": number, "state": state} | changes))


def rollout(uid: str, group_index: int, number: int = 0, retry: int = 0, **changes: Any) -> RolloutRecord:
    fields = {"run": "demo", "uid": uid, "group_id": f"src/0/{group_index}", "member": number, "retry": retry}
    return RolloutRecord(**(fields | {"status": RolloutStatus.OK, "digest": digest(uid.encode()), "reward": 0.5} | changes))


def item(uid: str, group_index: int, number: int = 0, **changes: Any) -> ArrivedItem:
    body = changes.pop("body", f"the body of {uid}".encode("utf-8", "replace"))
    fields = {"run": "demo", "uid": uid, "group_id": f"src/0/{group_index}", "member": number, "environment": "digits", "problem_id": "p"}
    facts = {"reward": 0.5, "failure": None, "kept": True, "stored_at": float(number)}
    return ArrivedItem(**(fields | facts | {"num_bytes": len(body), "digest": digest(body), "body": body} | changes))


def annotation(rollout_uid: str, group_index: int, name: str, step: int | None = None) -> AnnotationRecord:
    uid = f"{rollout_uid}:{name}:{step}"
    return AnnotationRecord(run="demo", rollout_uid=rollout_uid, group_id=f"src/0/{group_index}", name=name, step=step, uid=uid, digest=digest(b""))


def payload(uid: str, body: bytes, run: str = "demo") -> Payload:
    return Payload(run=run, uid=uid, content_type="msgpack", body=body, digest=digest(body))


def entry(episode: str, index: int, body: bytes = b"event") -> JournalEntry:
    return JournalEntry(run="demo", episode=episode, index=index, body=body)


def plan(update: int, **changes: Any) -> Plan:
    fields = {"run": "demo", "update": update, "term": 1, "groups": (PlannedGroup(id="src/0/0", digest="d"),), "newest_version": update, "tokens": 9}
    return Plan(**(fields | {"request": CutRequest(budget_tokens=64, config={"a.b": "1"}), "carry": {"digits": -0.5}} | changes))


def outcome(update: int) -> Outcome:
    return Outcome(run="demo", update=update, kind="applied", version=update + 1, digest=digest(b"w"))


def checkpoint(update: int, *, kept: bool = True) -> CheckpointRecord:
    return CheckpointRecord(run="demo", update=update, digest="c", term=1, kept=kept)


ONE_OF_EACH: tuple[Record, ...] = (
    RUN,
    group(0, GroupState.COMPLETE, usable=1, oldest_version=3, updates=(1, 2)),
    member(0, 0, MemberState.ACCEPTED, uid="u0", session="w1", claimed_at=2.25),
    rollout("u0", 0, tokens=12, versions=(3, 4), prefix_digest="x"),
    annotation("u0", 0, "judge", 3),
    SessionRecord(run="demo", session="w1", worker="worker-1", expires_at=12.5),
    TermRecord(run="demo", term=4, owner="learner", expires_at=3.0, first_update=0),
    plan(0),
    outcome(0),
    Version(run="demo", version=1, digest="w", update=0, live=True),
    checkpoint(0),
    payload("u0", b"\x00bytes\xff"),
    entry("e0", 0),
    LeaseRecord(
        run="demo",
        lease="l1",
        consumer="trainer",
        groups=(PlannedGroup(id="src/0/0", digest="d"),),
        state=LeaseState.TAKEN,
        fence=3,
        seconds=60.0,
        expires_at=72.5,
        taken_at=12.5,
        facts={"a": "1"},
    ),
    ReaderRecord(run="demo", reader="r", read_id="l0", read_at=2.0, ready_order=4, reads=1, items=8),
)


def damaged(rig: Rig, needle: bytes, *records: Record) -> Store:
    """A store with `records`, opened after some of the stored bytes were damaged."""
    store = rig.open()
    store.submit(records)
    rig.settle(store)
    # Not the last that was written: damage there could be taken for a write that was cut short.
    store.submit([group(3)])
    store.close()
    rig.flip(needle)
    return rig.open()
