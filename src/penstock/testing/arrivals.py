"""A ledger of arriving items to try rules on, without disk or clock."""

from __future__ import annotations

from typing import TypeVar

from penstock import ledger as law
from penstock.ledger import Decision, Ledger, arrivals
from penstock.ledger.arrivals import ArrivalRules, Arrived, Item, Reading
from penstock.types import (
    AnnotationRecord,
    GroupRecord,
    Laws,
    LeaseRecord,
    MemberRecord,
    Plan,
    RolloutRecord,
)
from penstock.wire import digest

T = TypeVar("T")


class Tray:
    """A run named `run`; an `ArrivalPast` of itself. Every verb decides and applies at once; `now` is set by hand."""

    def __init__(self, **rules: float) -> None:
        self.rules = ArrivalRules(**rules)  # type: ignore[arg-type]
        opened = law.open_run(None, "run", Laws(min_group_size=1), "compatible", 0.0)
        self.ledger = Ledger(opened.reply)
        self.now = 0.0
        self.stored_groups: dict[str, GroupRecord] = {}
        self.stored_members: dict[tuple[str, int], MemberRecord] = {}
        self.stored_rollouts: dict[str, RolloutRecord] = {}
        self.stored_leases: dict[str, LeaseRecord] = {}
        self.do(opened)

    def do(self, decision: Decision[T]) -> T:
        """Apply a decision and give its reply."""
        self.ledger.apply(decision.records)
        for record in decision.records:
            match record:
                case GroupRecord():
                    self.stored_groups[record.id] = record
                case RolloutRecord():
                    self.stored_rollouts[record.uid] = record
                case MemberRecord():
                    self.stored_members[record.group_id, record.member] = record
                case LeaseRecord():
                    self.stored_leases[record.lease] = record
                case _:
                    pass
        return decision.reply

    def group(self, run: str, group_id: str) -> GroupRecord | None:
        return self.stored_groups.get(group_id)

    def rollout(self, run: str, uid: str) -> RolloutRecord | None:
        return self.stored_rollouts.get(uid)

    def rollouts(self, run: str, group_id: str) -> tuple[RolloutRecord, ...]:
        return tuple(sorted((each for each in self.stored_rollouts.values() if each.group_id == group_id), key=lambda each: each.member))

    def annotations(self, run: str, group_id: str) -> tuple[AnnotationRecord, ...]:
        return ()

    def plan(self, run: str, update: int) -> Plan | None:
        return None

    def lease(self, run: str, lease: str) -> LeaseRecord | None:
        return self.stored_leases.get(lease)

    def write(self, uid: str, instance: str = "a", reward: float | None = 1.0, *, content: str = "", environment: str = "env", kept: bool = True) -> Arrived:
        """Write an item."""
        body = f"{uid} {instance} {reward} {content}".encode()
        item = Item(uid=uid, instance=instance, problem_id=instance, environment=environment, reward=reward, kept=kept, body=body, digest=digest(body))
        return self.do(arrivals.arrive(self.ledger, self, self.rules, item, self.now))

    def time_out(self, environment: str = "env") -> tuple[GroupRecord, ...]:
        """Act on the clock."""
        return self.do(arrivals.time_out(self.ledger, self.rules, environment, self.now))

    def read(self, *served: str, read_id: str = "r1", **dropped: str) -> LeaseRecord | None:
        """Read groups for good; those named with a reason are dropped."""
        reading = Reading(read_id=read_id, served=served, dropped={name.replace("_", "/"): reason for name, reason in dropped.items()})
        return self.do(arrivals.read(self.ledger, self, reading, "reader", self.now))

    def state(self, group_id: str) -> str:
        """State of a group, with the reason if it was dropped."""
        group = self.stored_groups[group_id]
        return f"{group.state.value}({group.reason})" if group.reason else group.state.value
