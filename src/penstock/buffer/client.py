"""A client of the buffer. Every verb may be sent twice without harm, so it is: until it is answered or its deadline passes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import quote

from penstock.buffer import api
from penstock.buffer.calls import POLL_SECONDS, Calls
from penstock.buffer.findings import Finding, Findings
from penstock.buffer.intake import decode_annotation, decode_rollout
from penstock.buffer.stored import GivenGroup, StoredGroup
from penstock.buffer.story import Story
from penstock.errors import CorruptError
from penstock.ledger.groups import content_digest
from penstock.ledger.work import WorkLease
from penstock.types import (
    Annotation,
    AnnotationRecord,
    CheckpointRecord,
    CutRequest,
    Group,
    GroupRecord,
    JournalEntry,
    Laws,
    LeaseRecord,
    LeaseRequest,
    MemberRecord,
    Payload,
    Plan,
    Rollout,
    RolloutRecord,
    SessionRecord,
    TermRecord,
    Version,
)
from penstock.wire import decode_msgpack, digest, encode_msgpack, join_items, read_body, split_items

__all__ = ["BufferClient", "api", "group_of"]

log = logging.getLogger(__name__)


class BufferClient:
    """The verbs of the buffer for one run, over HTTP.

    Connection errors, 408, 429, 503 and 507 are tried again with growing pauses until `deadline_seconds` have passed since the call; then `StoreError`
    says what was waited for. Other refusals are raised at once, as the error they were on the other side. That is safe for every verb: each names
    what it is about (a uid, a claim's number, a lease's id, an update), so that the second of two equal requests changes nothing.
    Without `token` the environment's PENSTOCK_TOKEN is sent, if there is one.
    """

    def __init__(self, url: str, run: str, *, token: str | None = None, deadline_seconds: float = 60.0) -> None:
        self.url = url.rstrip("/")
        self.run = run
        self._calls = Calls(self.url, run, token=token, deadline_seconds=deadline_seconds)
        self._claims: Counter[str] = Counter()
        """Claims made, by session."""

    async def __aenter__(self) -> Self:
        self._calls.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._calls.close()

    # A run

    async def runs(self) -> tuple[str, ...]:
        """Names of all runs of the buffer."""
        return (await self._calls.get("/v1/runs", api.Runs)).runs

    async def open_run(self, laws: Laws, initial_digest: str) -> api.RunStatus:
        """See `ledger.open_run`."""
        return await self._calls.post("", api.OpenRun(laws=laws, initial_digest=initial_digest), api.RunStatus)

    async def status(self) -> api.RunStatus:
        """How the run stands."""
        return await self._calls.get("", api.RunStatus)

    async def newest_version(self) -> Version:
        """The weights that servers should serve."""
        return await self._calls.get("/versions/newest", Version)

    async def versions(self) -> tuple[Version, ...]:
        """All that were recorded."""
        return (await self._calls.get("/versions", api.Versions)).versions

    async def ledger(self) -> api.LedgerReply:
        """Where every group and member is."""
        return await self._calls.get("/ledger", api.LedgerReply)

    async def statistics(self) -> api.Statistics:
        """How the run fares."""
        return await self._calls.get("/statistics", api.Statistics)

    async def where(self, asked: str) -> Story:
        """The story of a group id, a rollout's uid, or `<group>#<member>`."""
        return await self._calls.get(f"/where/{quote(asked)}", Story)

    async def verify(self) -> tuple[Finding, ...]:
        """Have the buffer check what it holds of the run. Takes as long as reading all of it; asked once, without a deadline."""
        return (await self._calls.once("/verify", Findings)).findings

    async def export(self, query: Sequence[tuple[str, str]] = ()) -> AsyncIterator[bytes]:
        """Stored rollouts, a line of JSON each, as they arrive. `query`: see `buffer.selection`. A stream that breaks off raises `StoreError`."""
        async for line in self._calls.lines("/export", query):
            yield line

    # Workers

    async def open_groups(self, groups: Sequence[api.OpenGroup], *, wait_seconds: float = 0.0) -> api.GroupsOpened:
        """Open groups in order, as far as credits last; waits for credit for the first, if asked to."""
        return await self._calls.post("/groups", api.OpenGroups(groups=tuple(groups), wait_seconds=wait_seconds), api.GroupsOpened)

    async def open_session(self, session: str, worker: str) -> SessionRecord:
        """See `ledger.open_session`."""
        return await self._calls.post("/sessions", api.OpenSession(session=session, worker=worker), SessionRecord)

    async def beat(self, session: str) -> SessionRecord:
        """See `ledger.beat`."""
        return read_body(await self._calls.call("POST", f"/sessions/{quote(session)}/beat"), SessionRecord)

    async def claim(
        self, session: str, count: int, *, environments: Sequence[str] | None = None, wait_seconds: float = POLL_SECONDS
    ) -> tuple[api.ClaimedSlot, ...]:
        """Slots to fill; empty if none came free in time."""
        names = None if environments is None else tuple(environments)
        self._claims[session] += 1
        wanted = api.Claim(count=count, environments=names, wait_seconds=wait_seconds, number=self._claims[session])
        return (await self._calls.post(f"/sessions/{quote(session)}/claim", wanted, api.Claimed)).slots

    async def release(self, session: str) -> None:
        """See `ledger.release`."""
        await self._calls.call("POST", f"/sessions/{quote(session)}/release")

    async def write(self, rollouts: Sequence[Rollout], *, checked: bool = True) -> tuple[api.Written, ...]:
        """Store rollouts; one answer for each. Durable when this returns. Not `checked`: see `encode_msgpack`; the buffer looks at them in any case."""
        body = join_items([encode_msgpack(rollout, checked=checked) for rollout in rollouts])
        return read_body(await self._calls.call("POST", "/rollouts", body, "application/msgpack"), _WrittenReply).rollouts

    # Enrichment

    async def take_work(self, wanted: api.TakeWork) -> WorkLease:
        """Rollouts whose annotations are missing; without items if none came up in time. Asked again under the same name it gives the same."""
        return await self._calls.post("/enrichment", wanted, WorkLease)

    async def renew_work(self, lease: str, consumer: str) -> WorkLease:
        """Keep the work for as long again."""
        return await self._calls.post(f"/enrichment/{quote(lease)}/renew", api.Holder(consumer=consumer), WorkLease)

    async def release_work(self, lease: str, consumer: str) -> bool:
        """Give back what was not done; says whether there was anything."""
        return (await self._calls.post(f"/enrichment/{quote(lease)}/release", api.Holder(consumer=consumer), api.Released)).released

    async def annotate(self, annotation: Annotation) -> None:
        """See `ledger.annotate`."""
        await self._calls.call("POST", "/annotations", encode_msgpack(annotation), "application/msgpack")

    async def rollout(self, uid: str) -> Rollout:
        """A stored rollout. Raises `InputError` for an item of the compatible routes, which is none."""
        body = await self._calls.call("GET", f"/rollouts/{quote(uid)}")
        # JSON begins with a bracket; msgpack of an envelope never does.
        return decode_rollout(body, "json" if body[:1] in b"{[" else "msgpack")

    # Outside consumers

    async def take_lease(self, lease: str, consumer: str, request: LeaseRequest | None = None, *, wait_seconds: float = POLL_SECONDS) -> api.LeaseReply:
        """Whole groups for a time, or what is missing. `lease` is an id that the caller makes up: asked again, it gives the same groups."""
        wanted = api.TakeLease(lease=lease, consumer=consumer, request=request or LeaseRequest(), wait_seconds=wait_seconds)
        return await self._calls.post("/leases", wanted, api.LeaseReply)

    async def lease(self, lease: str) -> LeaseRecord:
        """How a lease stands."""
        return await self._calls.get(f"/leases/{quote(lease)}", LeaseRecord)

    async def lease_groups(self, lease: LeaseRecord) -> tuple[Group, ...]:
        """The groups of a lease, in its order, with their content checked against it. One that is damaged or retired is left out, with a warning."""
        given = await self.lease_bytes(lease)
        if [found.id for found in given] != [planned.id for planned in lease.groups]:
            raise CorruptError(f"the buffer gave other groups than lease {lease.lease} names")
        groups = []
        for planned, found in zip(lease.groups, given, strict=True):
            if found.damaged is not None:
                log.warning("lease %s: group %s is left out: %s", lease.lease, found.id, found.damaged)
                continue
            group = group_of(found.stored)
            if (group.id, group.digest) != (planned.id, planned.digest):
                raise CorruptError(f"the buffer gave other groups than lease {lease.lease} names")
            groups.append(group)
        return tuple(groups)

    async def lease_bytes(self, lease: LeaseRecord) -> tuple[GivenGroup, ...]:
        """The groups of a lease as they are stored, for items that are not rollouts of ours. Those that are `damaged` say why, and are empty."""
        path = f"/leases/{quote(lease.lease)}/groups?consumer={quote(lease.consumer)}"
        items = split_items(await self._calls.call("GET", path, accept="application/msgpack"), "msgpack")
        return tuple(decode_msgpack(item, GivenGroup) for item in items)

    async def renew_lease(self, lease: str, consumer: str, *, seconds: float | None = None) -> LeaseRecord:
        """See `ledger.renew_lease`."""
        return await self._calls.post(f"/leases/{quote(lease)}/renew", api.RenewLease(consumer=consumer, seconds=seconds), LeaseRecord)

    async def settle_lease(self, lease: str, consumer: str) -> LeaseRecord:
        """See `ledger.settle_lease`."""
        return await self._calls.post(f"/leases/{quote(lease)}/settle", api.Holder(consumer=consumer), LeaseRecord)

    async def release_lease(self, lease: str, consumer: str) -> LeaseRecord:
        """See `ledger.release_lease`."""
        return await self._calls.post(f"/leases/{quote(lease)}/release", api.Holder(consumer=consumer), LeaseRecord)

    async def slots_of(self, group_id: str) -> tuple[GroupRecord, tuple[MemberRecord, ...]]:
        """A group and its slots as they stand. Raises `UnknownError` if nobody has opened it."""
        found = await self._calls.get(f"/groups/{quote(group_id)}", api.GroupFacts)
        return found.group, found.members

    # Journals

    async def append_journal(self, episode: str, index: int, entries: Sequence[bytes]) -> None:
        """Append to an episode's journal from `index` on. Durable when this returns; `ConflictError` if other entries are there."""
        await self._calls.call("POST", f"/journal/{quote(episode)}?index={index}", join_items(entries), "application/msgpack")

    async def append_journals(self, entries: Sequence[tuple[str, int, bytes]]) -> None:
        """Append to the journals of several episodes: each entry with its episode and its index. All are durable when this returns, or none are taken."""
        # There may be thousands a second, of names that the caller makes; the buffer looks at them in any case.
        items = [encode_msgpack(JournalEntry(run=self.run, episode=episode, index=index, body=body), checked=False) for episode, index, body in entries]
        await self._calls.call("POST", "/journals", join_items(items), "application/msgpack")

    async def journal(self, episode: str) -> list[bytes]:
        """All entries of an episode's journal; none if there is none."""
        return split_items(await self._calls.call("GET", f"/journal/{quote(episode)}"), "msgpack")

    # The learner

    async def take_term(self, wanted: api.TakeTerm) -> TermRecord:
        """See `ledger.take_term`."""
        return await self._calls.post("/term", wanted, TermRecord)

    async def renew_term(self, term: int) -> TermRecord:
        """See `ledger.renew_term`."""
        return await self._calls.post("/term/renew", api.UnderTerm(term=term), TermRecord)

    async def cut(self, update: int, term: int, request: CutRequest, *, wait_seconds: float = POLL_SECONDS) -> api.CutReply:
        """The plan of an update, or what it waits for."""
        return await self._calls.post(f"/updates/{update}/cut", api.CutBody(term=term, request=request, wait_seconds=wait_seconds), api.CutReply)

    async def plan(self, update: int) -> Plan:
        """A plan that was cut."""
        return await self._calls.get(f"/updates/{update}/plan", Plan)

    async def fetch(self, plan: Plan) -> tuple[Group, ...]:
        """The groups of a plan, in its order, with their content checked against it."""
        items = split_items(await self._calls.call("GET", f"/updates/{plan.update}/groups"), "msgpack")
        groups = tuple(group_of(decode_msgpack(item, StoredGroup)) for item in items)
        if [(group.id, group.digest) for group in groups] != [(group.id, group.digest) for group in plan.groups]:
            raise CorruptError(f"the buffer gave other groups than the plan of update {plan.update} names")
        return groups

    async def record(self, update: int, term: int, *, digest: str = "", skipped: str | None = None) -> api.RecordReply:
        """See `ledger.record`."""
        return await self._calls.post(f"/updates/{update}/outcome", api.RecordBody(term=term, digest=digest, skipped=skipped), api.RecordReply)

    async def fork(self, update: int, term: int, digest: str) -> Version:
        """See `ledger.fork`."""
        return await self._calls.post(f"/updates/{update}/fork", api.DigestBody(term=term, digest=digest), Version)

    async def publish(self, version: int, term: int) -> Version:
        """See `ledger.publish`."""
        return await self._calls.post(f"/versions/{version}/publish", api.UnderTerm(term=term), Version)

    async def keep(self, update: int, digest: str, term: int) -> CheckpointRecord:
        """See `ledger.keep`."""
        return await self._calls.post(f"/checkpoints/{update}/keep", api.DigestBody(term=term, digest=digest), CheckpointRecord)

    async def retire(self, update: int, term: int) -> CheckpointRecord:
        """See `ledger.retire`."""
        return await self._calls.post(f"/checkpoints/{update}/retire", api.UnderTerm(term=term), CheckpointRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WrittenReply:
    """Reply of a write, whether anything was taken or not."""

    rollouts: tuple[api.Written, ...]
    error: dict[str, str] | None = None


def group_of(stored: StoredGroup) -> Group:
    """A group with its rollouts decoded. Raises `CorruptError` if its bytes are not those that its digest, which plans name, was made from."""
    kept: list[tuple[RolloutRecord | AnnotationRecord, Payload]] = [*stored.rollouts, *stored.annotations]
    for record, payload in kept:
        # Against the record, which the group's digest covers: a payload's own digest would have been exchanged with it.
        if digest(payload.body) != record.digest:
            raise CorruptError(f"{payload.uid} is not what was stored (digest {record.digest})")
    if content_digest((record for record, _ in stored.rollouts), (record for record, _ in stored.annotations)) != stored.group.digest:
        raise CorruptError(f"group {stored.group.id} does not hold what was planned (digest {stored.group.digest})")
    group = stored.group
    return Group(
        run=group.run,
        id=group.id,
        environment=group.environment,
        problem_id=group.problem_id,
        purpose=group.purpose,
        rollouts=tuple(decode_rollout(payload.body, payload.content_type) for _, payload in stored.rollouts),
        annotations=tuple(decode_annotation(payload.body, payload.content_type) for _, payload in stored.annotations),
        digest=group.digest,
    )
