"""A ledger without disk or clock: decisions are applied at once, and what has left its memory is looked up in plain dicts."""

from __future__ import annotations

from typing import TypeVar

from penstock import ledger as law
from penstock.ledger import Decision, Ledger
from penstock.types import AnnotationRecord, ArrivedItem, GroupRecord, Laws, LeaseRecord, MemberRecord, Plan, RolloutRecord, SpentGroups, all_filled

T = TypeVar("T")


class Memory:
    """A run named `run`; a `Past` (and an `ArrivalPast`) of itself. `now` is set by hand."""

    def __init__(self, laws: Laws, initial_digest: str) -> None:
        opened = law.open_run(None, "run", laws, initial_digest, 0.0)
        self.ledger = Ledger(opened.reply)
        self.now = 0.0
        self.stored_groups: dict[str, GroupRecord] = {}
        self.stored_members: dict[tuple[str, int], MemberRecord] = {}
        self.stored_rollouts: dict[str, RolloutRecord] = {}
        self.stored_annotations: dict[tuple[str, str, int | None], AnnotationRecord] = {}
        self.stored_plans: dict[int, Plan] = {}
        self.stored_leases: dict[str, LeaseRecord] = {}
        self.do(opened)

    def do(self, decision: Decision[T]) -> T:
        """Apply a decision and give its reply."""
        self.ledger.apply(decision.records)
        for record in decision.records:
            match record:
                case GroupRecord():
                    self.stored_groups[record.id] = record
                case SpentGroups():
                    self.stored_groups |= {group.id: record.after(group) for group in record.groups}
                case RolloutRecord():
                    self.stored_rollouts[record.uid] = record
                    for slot in all_filled([self.stored_members[record.group_id, record.member]], [record]):
                        self.stored_members[record.group_id, record.member] = slot
                case ArrivedItem():
                    self.stored_rollouts[record.uid] = record.rollout
                    self.stored_members[record.group_id, record.member] = record.slot
                case MemberRecord():
                    self.stored_members[record.group_id, record.member] = record
                case AnnotationRecord():
                    self.stored_annotations[record.rollout_uid, record.name, record.step] = record
                case Plan():
                    self.stored_plans[record.update] = record
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
        return tuple(note for note in self.stored_annotations.values() if note.group_id == group_id)

    def plan(self, run: str, update: int) -> Plan | None:
        return self.stored_plans.get(update)

    def lease(self, run: str, lease: str) -> LeaseRecord | None:
        return self.stored_leases.get(lease)
