"""Items of groups that nobody opens: what is kept of one, and of groups that were read."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.types.episodes import RolloutStatus
from penstock.types.frozen import changed, quickly_made
from penstock.types.groups import GroupRecord, GroupState, MemberRecord, MemberState, RolloutRecord
from penstock.types.kept import Payload


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivedItem:
    """An item that has arrived: its bytes, its place in a group, and what the laws look at.

    One record, because thousands come in a second. Look-ups give what it stands for: a rollout, the slot that was issued for it and settled at
    once, and the payload. Written once and never replaced.
    """

    run: str
    uid: str
    group_id: str
    member: int
    environment: str
    problem_id: str
    reward: float | None
    failure: str | None
    """Why it counts as failed, if it does."""
    kept: bool
    """Whether the default filter keeps it."""
    stored_at: float
    num_bytes: int
    digest: str
    """xxh3-128 in hex of the bytes as accepted."""
    body: bytes
    """JSON, as it came. Empty where a look-up needs the facts alone."""

    @property
    def rollout(self) -> RolloutRecord:
        """The item as a stored try at its slot."""
        return RolloutRecord(
            run=self.run,
            uid=self.uid,
            group_id=self.group_id,
            member=self.member,
            retry=0,
            status=RolloutStatus.OK if self.failure is None else RolloutStatus.ENV_ERROR,
            digest=self.digest,
            environment=self.environment,
            problem_id=self.problem_id,
            reward=self.reward,
            failure=self.failure,
            stored_at=self.stored_at,
            form="item",
            num_bytes=self.num_bytes,
            kept=self.kept,
        )

    @property
    def slot(self) -> MemberRecord:
        """The slot: accepted, or failed for a reason."""
        state = MemberState.ACCEPTED if self.failure is None else MemberState.FAILED
        return MemberRecord(
            run=self.run, group_id=self.group_id, member=self.member, state=state, uid=self.uid, reason=self.failure, environment=self.environment
        )

    @property
    def payload(self) -> Payload:
        """Its bytes."""
        return Payload(run=self.run, uid=self.uid, content_type="json", body=self.body, digest=self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentGroups:
    """Groups that were ready for training and were given away for good, under one lease and at one moment.

    One record, because a read takes thousands. Look-ups give each group as it is afterwards.
    """

    run: str
    lease: str
    spent_at: float
    groups: tuple[GroupRecord, ...]
    """As they were: ready."""

    def after(self, group: GroupRecord) -> GroupRecord:
        """One of the groups as it is now."""
        return spent_group(group, self.lease, self.spent_at)


def spent_group(group: GroupRecord, lease: str, spent_at: float) -> GroupRecord:
    """A ready group after it was given away: bound and spent at once."""
    return changed(group, state=GroupState.SPENT, bound_at=spent_at, lease=lease, credit=0, ended_at=spent_at)
