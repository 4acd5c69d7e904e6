"""A ledger to try rules on: every verb of a run as one short call."""

from __future__ import annotations

from typing import Any

from penstock import ledger as law
from penstock.testing.memory import Memory
from penstock.types import (
    CutRequest,
    GroupState,
    Laws,
    LeaseRecord,
    LeaseRequest,
    Payload,
    Plan,
    Purpose,
    RolloutRecord,
    RolloutStatus,
)


class Notebook(Memory):
    """A run on laws of your choice. Every verb decides and applies at once, so that a test reads as a story."""

    def __init__(self, laws: Laws | None = None) -> None:
        super().__init__(laws or Laws(), "weights-0")

    def state(self, group_id: str) -> GroupState:
        """State of a group, ended or not."""
        return self.stored_groups[group_id].state

    def open(self, group_id: str, *, environment: str = "env", size: int = 2, first_estimate: int = 100, purpose: Purpose = Purpose.TRAIN) -> law.Opened:
        """Open a group for the problem of the same name."""
        return self.do(
            law.open_group(
                self.ledger,
                self,
                group_id=group_id,
                environment=environment,
                problem_id=group_id,
                purpose=purpose,
                size=size,
                seed=0,
                first_estimate=first_estimate,
                now=self.now,
            )
        )

    def write(self, group_id: str, member: int, **facts: Any) -> law.Accepted:
        """Write the rollout that `rollout_of` makes of it."""
        return self.do(law.accept(self.ledger, self, *self.rollout_of(group_id, member, **facts), self.now))

    def rollout_of(
        self,
        group_id: str,
        member: int,
        *,
        uid: str | None = None,
        retry: int = 0,
        version: int = 0,
        tokens: int = 10,
        prefix_tokens: int = 0,
        status: RolloutStatus = RolloutStatus.OK,
        reward: float | None = None,
        content: str = "",
    ) -> tuple[RolloutRecord, Payload]:
        """A rollout of `tokens` tokens, all but its prefix sampled at `version`."""
        uid = uid or f"{group_id}:{member}:{retry}"
        rollout = RolloutRecord(
            run="run",
            uid=uid,
            group_id=group_id,
            member=member,
            retry=retry,
            status=status,
            digest=f"digest of {uid} {content}",
            reward=reward,
            tokens=tokens,
            sampled_tokens=tokens - prefix_tokens,
            prefix_tokens=prefix_tokens,
            prefix_digest=f"prompt of {group_id}",
            oldest_version=version,
            newest_version=version,
            versions=(version,),
        )
        return rollout, Payload(run="run", uid=uid, content_type="json", body=content.encode(), digest=rollout.digest)

    def fill(self, group_id: str, *, environment: str = "env", size: int = 2, version: int = 0, tokens: int = 10) -> None:
        """Open a group and write all its members."""
        self.open(group_id, environment=environment, size=size)
        for member in range(size):
            self.write(group_id, member, version=version, tokens=tokens)

    def learner(self, owner: str = "learner", checkpoint: int = 0, **options: str) -> int:
        """Take a term and give its number."""
        return self.do(law.take_term(self.ledger, self, owner, checkpoint, self.now, **options)).term  # type: ignore[arg-type]

    def cut(self, update: int, term: int = 1, **request: object) -> Plan | law.Wait:
        """Cut an update; one group each unless told otherwise."""
        wanted = CutRequest(**(request or {"groups_per_update": 1}))  # type: ignore[arg-type]
        return self.do(law.cut(self.ledger, self, update, term, wanted, self.now))

    def record(self, update: int, term: int = 1, *, digest: str | None = None, skipped: str | None = None) -> law.Recorded:
        """Record an update as applied (with weights named after it) or skipped."""
        digest = "" if skipped else digest or f"weights of update {update}"
        return self.do(law.record(self.ledger, self, update, term, self.now, digest=digest, skipped=skipped))

    def publish(self, version: int, term: int = 1) -> None:
        """Make a version live."""
        self.do(law.publish(self.ledger, version, term))

    def keep(self, update: int, term: int = 1, digest: str = "checkpoint") -> None:
        """Keep a checkpoint."""
        self.do(law.keep(self.ledger, self, update, digest, term, self.now))

    def take(self, lease: str, consumer: str = "consumer", **request: object) -> LeaseRecord | law.Wait:
        """Take a lease; of all that is ready unless told otherwise."""
        return self.do(law.take_lease(self.ledger, self, lease, consumer, LeaseRequest(**request), self.now))  # type: ignore[arg-type]

    def settle(self, lease: str, consumer: str = "consumer") -> LeaseRecord:
        """Settle a lease."""
        return self.do(law.settle_lease(self.ledger, self, lease, consumer, self.now))
