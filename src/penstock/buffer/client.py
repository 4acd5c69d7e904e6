"""A client of the buffer. Every verb may be sent twice without harm, so it is: until it is answered or its deadline passes."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp

from penstock.buffer import api
from penstock.buffer.core import StoredGroup
from penstock.buffer.intake import decode_annotation, decode_rollout
from penstock.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InputError,
    InvalidError,
    LimitError,
    MalformedError,
    PenstockError,
    StoreError,
    UnknownError,
)
from penstock.ledger.groups import content_digest
from penstock.types import (
    Annotation,
    AnnotationRecord,
    CheckpointRecord,
    CutRequest,
    Group,
    GroupRecord,
    Laws,
    MemberRecord,
    Payload,
    Plan,
    Rollout,
    RolloutRecord,
    SessionRecord,
    TermRecord,
    Version,
)
from penstock.wire import decode_msgpack, digest, encode_msgpack, join_items, read_body, split_items, write_body

__all__ = ["BufferClient", "api", "group_of"]

T = TypeVar("T")

_ERRORS: dict[str, type[PenstockError]] = {
    error.code: error for error in (MalformedError, InvalidError, UnknownError, ConflictError, FencedError, LimitError, InputError)
}
_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)
_POLL_SECONDS = 20.0


class BufferClient:
    """The verbs of the buffer for one run, over HTTP.

    Connection errors, 429, 503 and 507 are tried again with growing pauses until `deadline_seconds` have passed since the call; then `StoreError`
    says what was waited for. Other refusals are raised at once, as the error they were on the other side.
    """

    def __init__(self, url: str, run: str, *, token: str | None = None, deadline_seconds: float = 60.0) -> None:
        self.url = url.rstrip("/")
        self.run = run
        self._deadline_seconds = deadline_seconds
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None
        self._claims: Counter[str] = Counter()
        """Claims made, by session."""

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=_POLL_SECONDS + 20.0)
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()

    # A run

    async def open_run(self, laws: Laws, initial_digest: str) -> api.RunStatus:
        """See `ledger.open_run`."""
        return await self._post("", api.OpenRun(laws=laws, initial_digest=initial_digest), api.RunStatus)

    async def status(self) -> api.RunStatus:
        """How the run stands."""
        return read_body(await self._call("GET", ""), api.RunStatus)

    async def newest_version(self) -> Version:
        """The weights that servers should serve."""
        return read_body(await self._call("GET", "/versions/newest"), Version)

    async def versions(self) -> tuple[Version, ...]:
        """All that were recorded."""
        return read_body(await self._call("GET", "/versions"), _Versions).versions

    # Workers

    async def open_groups(self, groups: Sequence[api.OpenGroup]) -> api.GroupsOpened:
        """Open groups in order, as far as credits last."""
        return await self._post("/groups", api.OpenGroups(groups=tuple(groups)), api.GroupsOpened)

    async def open_session(self, session: str, worker: str) -> SessionRecord:
        """See `ledger.open_session`."""
        return await self._post("/sessions", api.OpenSession(session=session, worker=worker), SessionRecord)

    async def beat(self, session: str) -> SessionRecord:
        """See `ledger.beat`."""
        return read_body(await self._call("POST", f"/sessions/{session}/beat"), SessionRecord)

    async def claim(
        self, session: str, count: int, *, environments: Sequence[str] | None = None, wait_seconds: float = _POLL_SECONDS
    ) -> tuple[api.ClaimedSlot, ...]:
        """Slots to fill; empty if none came free in time."""
        names = None if environments is None else tuple(environments)
        self._claims[session] += 1
        wanted = api.Claim(count=count, environments=names, wait_seconds=wait_seconds, number=self._claims[session])
        return (await self._post(f"/sessions/{session}/claim", wanted, api.Claimed)).slots

    async def release(self, session: str) -> None:
        """See `ledger.release`."""
        await self._call("POST", f"/sessions/{session}/release")

    async def write(self, rollouts: Sequence[Rollout]) -> tuple[api.Written, ...]:
        """Store rollouts; one answer for each. Durable when this returns."""
        body = join_items([encode_msgpack(rollout) for rollout in rollouts])
        return read_body(await self._call("POST", "/rollouts", body, "application/msgpack"), api.WrittenAll).rollouts

    async def annotate(self, annotation: Annotation) -> None:
        """See `ledger.annotate`."""
        await self._call("POST", "/annotations", encode_msgpack(annotation), "application/msgpack")

    async def slots_of(self, group_id: str) -> tuple[GroupRecord, tuple[MemberRecord, ...]]:
        """A group and its slots as they stand. Raises `UnknownError` if nobody has opened it."""
        found = read_body(await self._call("GET", f"/groups/{group_id}"), _GroupFacts)
        return found.group, found.members

    # Journals

    async def append_journal(self, episode: str, index: int, entries: Sequence[bytes]) -> None:
        """Append to an episode's journal from `index` on. Durable when this returns; `ConflictError` if other entries are there."""
        await self._call("POST", f"/journal/{episode}?index={index}", join_items(entries), "application/msgpack")

    async def journal(self, episode: str) -> list[bytes]:
        """All entries of an episode's journal; none if there is none."""
        return split_items(await self._call("GET", f"/journal/{episode}"), "msgpack")

    # The learner

    async def take_term(self, wanted: api.TakeTerm) -> TermRecord:
        """See `ledger.take_term`."""
        return await self._post("/term", wanted, TermRecord)

    async def renew_term(self, term: int) -> TermRecord:
        """See `ledger.renew_term`."""
        return await self._post("/term/renew", api.UnderTerm(term=term), TermRecord)

    async def cut(self, update: int, term: int, request: CutRequest, *, wait_seconds: float = _POLL_SECONDS) -> api.CutReply:
        """The plan of an update, or what it waits for."""
        return await self._post(f"/updates/{update}/cut", api.CutBody(term=term, request=request, wait_seconds=wait_seconds), api.CutReply)

    async def plan(self, update: int) -> Plan:
        """A plan that was cut."""
        return read_body(await self._call("GET", f"/updates/{update}/plan"), Plan)

    async def fetch(self, plan: Plan) -> tuple[Group, ...]:
        """The groups of a plan, in its order, with their content checked against it."""
        items = split_items(await self._call("GET", f"/updates/{plan.update}/groups"), "msgpack")
        groups = tuple(group_of(decode_msgpack(item, StoredGroup)) for item in items)
        if [(group.id, group.digest) for group in groups] != [(group.id, group.digest) for group in plan.groups]:
            raise CorruptError(f"the buffer gave other groups than the plan of update {plan.update} names")
        return groups

    async def record(self, update: int, term: int, *, digest: str = "", skipped: str | None = None) -> api.RecordReply:
        """See `ledger.record`."""
        return await self._post(f"/updates/{update}/outcome", api.RecordBody(term=term, digest=digest, skipped=skipped), api.RecordReply)

    async def fork(self, update: int, term: int, digest: str) -> Version:
        """See `ledger.fork`."""
        return await self._post(f"/updates/{update}/fork", api.DigestBody(term=term, digest=digest), Version)

    async def publish(self, version: int, term: int) -> Version:
        """See `ledger.publish`."""
        return await self._post(f"/versions/{version}/publish", api.UnderTerm(term=term), Version)

    async def keep(self, update: int, digest: str, term: int) -> CheckpointRecord:
        """See `ledger.keep`."""
        return await self._post(f"/checkpoints/{update}/keep", api.DigestBody(term=term, digest=digest), CheckpointRecord)

    async def retire(self, update: int, term: int) -> CheckpointRecord:
        """See `ledger.retire`."""
        return await self._post(f"/checkpoints/{update}/retire", api.UnderTerm(term=term), CheckpointRecord)

    async def _post(self, path: str, body: Any, answer: type[T]) -> T:
        return read_body(await self._call("POST", path, write_body(body)), answer)

    async def _call(self, method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> bytes:
        deadline = time.monotonic() + self._deadline_seconds
        attempt = 0
        while True:
            try:
                return await self._attempt(method, path, body, content_type)
            except (aiohttp.ClientError, TimeoutError, StoreError, LimitError) as error:
                pause = _PAUSES_SECONDS[min(attempt, len(_PAUSES_SECONDS) - 1)] * random.uniform(0.5, 1.0)
                if time.monotonic() + pause > deadline:
                    reason = f"{type(error).__name__}: {error}"
                    raise StoreError(f"the buffer did not take {method} {path or '/'} within {self._deadline_seconds:g} s ({reason})") from None
            attempt += 1
            await asyncio.sleep(pause)

    async def _attempt(self, method: str, path: str, body: bytes, content_type: str) -> bytes:
        assert self._session is not None, "use the client as a context: async with BufferClient(...)"
        url = f"{self.url}/v1/runs/{self.run}{path}"
        async with self._session.request(method, url, data=body or None, headers={"Content-Type": content_type}) as response:
            answer = await response.read()
            if response.status < 300:
                return answer
            raise _error_of(response.status, answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versions:
    """Reply of `/versions`."""

    versions: tuple[Version, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupFacts:
    """Reply of `/groups/{id}`."""

    group: GroupRecord
    members: tuple[MemberRecord, ...]
    rollouts: tuple[RolloutRecord, ...]
    annotations: tuple[AnnotationRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ErrorReply:
    """Reply of anything that was refused."""

    error: dict[str, str]


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


def _error_of(status: int, answer: bytes) -> PenstockError:
    """The error that the service raised, as far as its reply tells."""
    try:
        found = read_body(answer, _ErrorReply).error
    except InputError:
        return StoreError(f"HTTP {status}: {answer[:200]!r}")
    if status in (429, 413) or (status == 503 and found["code"] == LimitError.code):
        return LimitError(found["message"], http_status=status)
    return _ERRORS.get(found["code"], StoreError)(found["message"])
