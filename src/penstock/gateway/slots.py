"""How a session gets its place in the buffer: a slot that somebody has claimed, or one of a group that the gateway opens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from penstock.buffer.api import OpenGroup
from penstock.buffer.client import BufferClient
from penstock.errors import ConflictError, InvalidError, LimitError, UnknownError
from penstock.gateway.events import Repeats, Slot
from penstock.types import GroupRecord, Json, MemberRecord, MemberState, Purpose
from penstock.wire import check_id, digest

MOST_MEMBERS = 4096
LONE_ENVIRONMENT = "gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """Body of `POST /sessions`. Everything may be left out: then the session stands alone, is stored and never trained on."""

    group_id: str | None = None
    """Group that the session is a member of: one that exists, or, with `group_size`, one to be opened."""
    member: int | None = None
    """Slot of the group; the first that is free if it is not named."""
    retry: int | None = None
    """Try at the slot, as it was claimed; the one that is due if it is not named."""
    environment: str | None = None
    problem_id: str | None = None
    group_size: int | None = None
    """Members of a group that is to be opened."""
    purpose: Purpose | None = None
    """`train` for groups, `probe` for a session that stands alone."""
    seed: int | None = None
    """What is sampled follows from it; another for each slot if it is not named."""
    deadline_seconds: float | None = None
    """At most the gateway's own."""
    temperature: float | None = None
    """Used in place of the one that the client names."""
    max_tokens: int | None = None
    """Of a reply, where the client names no limit."""
    allow_filters: bool | None = None
    """Take `top_p` and the like; such tokens are stored and not trained on."""
    repeats: Repeats | None = None
    """Whether the same request again is a `retry` (the older reply is abandoned) or one more `sample`."""
    key: str | None = None
    """A name that the client makes up: opened again under it, the session is the same."""
    metadata: Mapping[str, Json] = field(default_factory=dict)
    """Stored with the rollout."""

    def __post_init__(self) -> None:
        for name, low, high in (("member", 0, MOST_MEMBERS - 1), ("retry", 0, 2**31), ("group_size", 1, MOST_MEMBERS), ("max_tokens", 1, 2**31)):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidError(f"{name}: must be {low} to {high}, got {value}")
        for name in ("group_id", "environment", "problem_id", "key"):
            if getattr(self, name) is not None:
                check_id(getattr(self, name), name)
        if self.temperature is not None and not 0 <= self.temperature <= 100:
            raise InvalidError(f"temperature: must be 0 to 100, got {self.temperature}")
        if self.deadline_seconds is not None and self.deadline_seconds <= 0:
            raise InvalidError(f"deadline_seconds: must be above 0, got {self.deadline_seconds}")
        if self.group_id is None and (self.group_size or 1) > 1:
            raise InvalidError("group_id: is needed for a group of several members, so that they find each other")
        if self.group_size is not None and self.member is not None and self.member >= self.group_size:
            raise InvalidError(f"member: must be below group_size {self.group_size}, got {self.member}")


class Slots:
    """Finds or makes slots in one run."""

    def __init__(self, client: BufferClient, *, estimate_tokens: int = 1024) -> None:
        self._client = client
        self._estimate_tokens = estimate_tokens
        """Of one member, until the buffer knows better."""

    async def slot(self, wanted: OpenSession, session: str, taken: frozenset[tuple[str, int]]) -> Slot:
        """The slot of a new session. Raises `UnknownError` for a group that is not there, `ConflictError` for a slot that is not free, `LimitError`
        while there is no credit for a new group."""
        group_id = wanted.group_id or f"{LONE_ENVIRONMENT}:{digest(session.encode())[:16]}/0/0"
        if wanted.group_size is not None or wanted.group_id is None:
            await self._open(wanted, group_id)
        if wanted.group_id is None and not wanted.member and not wanted.retry:
            return Slot(run=self._client.run, group_id=group_id, member=0, retry=0, **_facts(wanted))
        group, members = await self._client.slots_of(group_id)
        for name in ("environment", "problem_id", "purpose"):
            if getattr(wanted, name) not in (None, getattr(group, name)):
                raise ConflictError(f"{name}: group {group_id} was opened for {getattr(group, name)}, not {getattr(wanted, name)}")
        member = _member(wanted, group, members, taken)
        retry = member.retry if wanted.retry is None else wanted.retry
        return Slot(
            run=group.run,
            environment=group.environment,
            problem_id=group.problem_id,
            group_id=group_id,
            member=member.member,
            retry=retry,
            purpose=group.purpose,
        )

    async def _open(self, wanted: OpenSession, group_id: str) -> None:
        if wanted.group_id is not None and (wanted.environment is None or wanted.problem_id is None):
            raise InvalidError("environment and problem_id: are needed to open a group")
        size = wanted.group_size or 1
        opened = await self._client.open_groups(
            [
                OpenGroup(
                    id=group_id,
                    size=size,
                    seed=int(digest(group_id.encode())[:8], 16),
                    first_estimate=size * self._estimate_tokens,
                    **_facts(wanted),
                )
            ]
        )
        if not opened.opened:
            raise LimitError(f"the group cannot be opened yet: {opened.waiting}")


class _Facts(TypedDict):
    environment: str
    problem_id: str
    purpose: Purpose


def _facts(wanted: OpenSession) -> _Facts:
    """What a group that is opened for a session is about."""
    purpose = wanted.purpose or (Purpose.PROBE if wanted.group_id is None else Purpose.TRAIN)
    return {"environment": wanted.environment or LONE_ENVIRONMENT, "problem_id": wanted.problem_id or "none", "purpose": purpose}


def _member(wanted: OpenSession, group: GroupRecord, members: tuple[MemberRecord, ...], taken: frozenset[tuple[str, int]]) -> MemberRecord:
    """The slot that was named, or the first that nobody has."""
    if wanted.member is None:
        for member in members:
            if member.state is MemberState.PENDING and member.session is None and (group.id, member.member) not in taken:
                return member
        raise ConflictError(f"group {group.id} has no free slot: it is {group.state} and has {group.size}")
    if wanted.member >= len(members):
        raise UnknownError(f"group {group.id} has {group.size} members; there is no member {wanted.member}")
    member = members[wanted.member]
    if member.state is not MemberState.PENDING:
        raise ConflictError(f"member {member.member} of group {group.id} is {member.state} by rollout {member.uid}")
    if wanted.retry is not None and wanted.retry != member.retry:
        raise ConflictError(f"member {member.member} of group {group.id} is at try {member.retry}; try {wanted.retry} is over")
    if (group.id, member.member) in taken:
        raise ConflictError(f"member {member.member} of group {group.id} has an open session here")
    return member
