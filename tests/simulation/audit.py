"""Every record that the buffer decides, looked at by an account of its own that shares no rule with the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.buffer.store.places import spread
from penstock.buffer.store.protocol import Store
from penstock.types import (
    CheckpointRecord,
    GroupRecord,
    Laws,
    MemberRecord,
    MemberState,
    Outcome,
    Plan,
    Record,
    RolloutRecord,
    TermRecord,
    Version,
)
from tests.simulation.history import Violation
from tests.simulation.scenario import RUN

NEXT_STATES = {
    "open": ("open", "ready", "complete", "dropped"),
    "complete": ("complete", "ready", "dropped"),
    "ready": ("ready", "bound", "spent", "dropped"),
    "bound": ("bound", "ready", "spent", "dropped"),
    "spent": (),
    "dropped": (),
}
"""States that one decision may lead to: one that fills a group makes it ready too, and one that has trained may be spent when it goes stale."""


class Audit:
    """The newest record of everything, and what must hold between it and the next one."""

    def __init__(self, laws: Laws) -> None:
        self._laws = laws
        self._forget()

    def _forget(self) -> None:
        self.groups: dict[str, GroupRecord] = {}
        self.members: dict[tuple[str, int], MemberRecord] = {}
        self.rollouts: dict[str, RolloutRecord] = {}
        self.plans: dict[int, Plan] = {}
        self._planned: dict[int, set[str]] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.versions: dict[int, Version] = {}
        self.checkpoints: dict[int, CheckpointRecord] = {}
        self.retired: set[tuple[int, int]] = set()
        """(update, term) of checkpoints that may be deleted by now."""
        self.term: TermRecord | None = None

    def reload(self, store: Store) -> None:
        """Start again from what a store holds after a crash."""
        self._forget()
        snapshot = store.load(RUN)
        if snapshot is None:
            return
        for group in store.scan_groups(RUN):
            self.groups[group.id] = group
            for member in store.members(RUN, group.id):
                self.members[group.id, member.member] = member
        self.rollouts = {rollout.uid: rollout for rollout in store.scan_rollouts(RUN)}
        self.outcomes = {outcome.update: outcome for outcome in snapshot.outcomes if not outcome.void}
        self.versions = {version.version: version for version in snapshot.versions}
        self.checkpoints = {checkpoint.update: checkpoint for checkpoint in snapshot.checkpoints}
        self.term = snapshot.term
        for update in range(len(self.outcomes) + 1):
            plan = store.plan(RUN, update)
            if plan is not None and not plan.void:
                self._keep_plan(plan)

    @property
    def newest_version(self) -> int:
        return max(self.versions, default=-1)

    def see(self, records: Sequence[Record]) -> None:
        """One decision of the buffer, before it is durable."""
        records = spread(records)
        before = {record.id: self.groups.get(record.id) for record in records if isinstance(record, GroupRecord)}
        newest = self.newest_version
        for record in records:
            match record:
                case GroupRecord():
                    self._see_group(record)
                case MemberRecord():
                    self._see_member(record)
                case RolloutRecord():
                    self._see_rollout(record)
                case Plan():
                    self._see_plan(record, before, newest)
                case Outcome():
                    self._see_outcome(record)
                case Version():
                    self._see_version(record)
                case TermRecord():
                    self._see_term(record)
                case CheckpointRecord():
                    self._see_checkpoint(record)
                case _:
                    pass
        for record in records:
            if isinstance(record, GroupRecord):
                self._check_whole(before[record.id], record)
                self._check_filtered(before[record.id], record)
                self._check_uses(self.groups[record.id])
            elif isinstance(record, Version) and record.live:
                self._check_credit_is_back(record)

    def _see_group(self, group: GroupRecord) -> None:
        old = self.groups.get(group.id)
        if old is None:
            if group.state != "open" or group.order != len(self.groups):
                raise Violation("D5", f"group {group.id} begins as {group.state} number {group.order}; {len(self.groups)} were opened before", group.id)
        else:
            if group.state not in NEXT_STATES[old.state]:
                raise Violation("E3", f"group {group.id} goes from {old.state} to {group.state}", group.id)
            if (old.size, old.environment, old.purpose, old.order, old.seed) != (group.size, group.environment, group.purpose, group.order, group.seed):
                raise Violation("E3", f"group {group.id} became another group", group.id)
        if group.state == "dropped" and not group.reason:
            raise Violation("E1", f"group {group.id} is dropped without a reason", group.id)
        if group.credit and (group.state in ("spent", "dropped") or group.purpose != "train"):
            raise Violation("D5", f"group {group.id} is {group.state} and holds {group.credit} tokens of credit", group.id)
        if group.state == "bound" and group.purpose != "train":
            raise Violation("E3", f"group {group.id} is for {group.purpose} and was cut", group.id)
        self.groups[group.id] = group

    def _see_member(self, member: MemberRecord) -> None:
        group_id = member.group_id
        old = self.members.get((group_id, member.member))
        if not 0 <= member.member < self.groups[group_id].size:
            raise Violation("E3", f"group {group_id} has no member {member.member}", group_id)
        if old is not None and (old.state != "pending" or member.retry < old.retry):
            raise Violation("E3", f"member {member.member} of group {group_id} was {old.state} at try {old.retry} and is {member.state} again", group_id)
        if member.state == "accepted":
            filler = self.rollouts.get(member.uid or "")
            if filler is None or (filler.group_id, filler.member, filler.retry) != (group_id, member.member, member.retry) or not filler.status.usable:
                raise Violation("E3", f"member {member.member} of group {group_id} is filled by {member.uid}, which is no try of it", group_id, member.uid)
        self.members[group_id, member.member] = member

    def _see_rollout(self, rollout: RolloutRecord) -> None:
        if rollout.uid in self.rollouts:
            raise Violation("D4", f"rollout {rollout.uid} is stored a second time", rollout.uid, rollout.group_id)
        if self.groups[rollout.group_id].state != "open":
            raise Violation("E3", f"rollout {rollout.uid} came into {self.groups[rollout.group_id].state} group {rollout.group_id}", rollout.group_id)
        unknown = [version for version in rollout.versions if version not in self.versions]
        if unknown:
            raise Violation("F1", f"rollout {rollout.uid} has tokens of version {unknown[0]}, which no outcome names", rollout.uid, rollout.group_id)
        self.rollouts[rollout.uid] = rollout
        if rollout.status.usable and rollout.form == "rollout":
            slot = self.members[rollout.group_id, rollout.member]
            if (slot.state, slot.retry) != ("pending", rollout.retry):
                raise Violation("E3", f"rollout {rollout.uid} fills a slot that is {slot.state} at try {slot.retry}", rollout.group_id, rollout.uid)
            self.members[slot.group_id, slot.member] = replace(slot, state=MemberState.ACCEPTED, session=None, uid=rollout.uid, reason=None)

    def _see_plan(self, plan: Plan, before: dict[str, GroupRecord | None], newest: int) -> None:
        if plan.void:
            self.plans.pop(plan.update, None)
            self._planned.pop(plan.update, None)
            return
        subject = f"update {plan.update}"
        if plan.update != len(self.outcomes) or plan.update in self.plans:
            raise Violation("E4", f"update {plan.update} is cut while {len(self.outcomes)} have outcomes and {sorted(self.plans)} have plans", subject)
        if plan.newest_version != newest:
            raise Violation("F2", f"update {plan.update} is cut at version {plan.newest_version}; the newest is {newest}", subject)
        for planned in plan.groups:
            was = before.get(planned.id) or self.groups.get(planned.id)
            if was is None or was.state != "ready":
                raise Violation("E2", f"group {planned.id} is cut into update {plan.update} and was {was and was.state} before", planned.id, subject)
            self._check_fresh(planned.id, plan)
        self._keep_plan(plan)
        for planned in plan.groups:
            self._check_reuse(planned.id)

    def _keep_plan(self, plan: Plan) -> None:
        self.plans[plan.update] = plan
        self._planned[plan.update] = {planned.id for planned in plan.groups}

    def _check_fresh(self, group_id: str, plan: Plan) -> None:
        for rollout in self._filling(group_id):
            oldest = min(rollout.versions)
            if plan.newest_version - oldest > self._laws.max_lag:
                raise Violation(
                    "F1", f"group {group_id} with tokens of version {oldest} is cut at {plan.newest_version}; max_lag is {self._laws.max_lag}", group_id
                )

    def _uses(self, group_id: str) -> tuple[int, ...]:
        """Updates that a group takes part in: planned, and not skipped."""
        skipped = [update for update, outcome in self.outcomes.items() if outcome.kind == "skipped"]
        return tuple(update for update, groups in sorted(self._planned.items()) if group_id in groups and update not in skipped)

    def _check_reuse(self, group_id: str) -> None:
        uses = self._uses(group_id)
        if len(uses) > self._laws.max_reuse:
            raise Violation("E2", f"group {group_id} is cut into updates {uses}; max_reuse is {self._laws.max_reuse}", group_id)

    def _check_uses(self, group: GroupRecord) -> None:
        if group.state in ("ready", "bound", "spent") and group.updates != self._uses(group.id):
            raise Violation("E2", f"group {group.id} counts updates {group.updates} and is planned for {self._uses(group.id)}", group.id)

    def _filling(self, group_id: str) -> list[RolloutRecord]:
        """Rollouts that fill the slots of a group."""
        slots = (self.members[group_id, number] for number in range(self.groups[group_id].size))
        return [self.rollouts[slot.uid or ""] for slot in slots if slot.state == "accepted"]

    def _see_outcome(self, outcome: Outcome) -> None:
        if outcome.void:
            self.outcomes.pop(outcome.update, None)
            return
        if outcome.update in self.outcomes or outcome.update not in self.plans:
            raise Violation("E4", f"update {outcome.update} gets an outcome it has already, or has no plan", f"update {outcome.update}")
        self.outcomes[outcome.update] = outcome

    def _see_version(self, version: Version) -> None:
        old = self.versions.get(version.version)
        if old is not None and old.digest != version.digest:
            raise Violation("F2", f"version {version.version} meant {old.digest} and now means {version.digest}", version.version)
        if old is None and version.version != self.newest_version + 1:
            raise Violation("F2", f"version {version.version} follows {self.newest_version}", version.version)
        self.versions[version.version] = version

    def _see_term(self, term: TermRecord) -> None:
        if self.term is not None and (term.term < self.term.term or (term.term == self.term.term and term.owner != self.term.owner)):
            raise Violation("E4", f"term {term.term} of {term.owner} follows term {self.term.term} of {self.term.owner}", term.owner)
        self.term = term

    def _see_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        if not checkpoint.kept:
            self.checkpoints.pop(checkpoint.update, None)
            self.retired.add((checkpoint.update, checkpoint.term))
            return
        if (checkpoint.update, checkpoint.term) in self.retired:
            raise Violation("E4", f"checkpoint update_{checkpoint.update} was retired and is offered again", f"update {checkpoint.update}")
        if checkpoint.update > len(self.outcomes):
            raise Violation("E4", f"checkpoint update_{checkpoint.update} holds updates without outcome", f"update {checkpoint.update}")
        self.checkpoints[checkpoint.update] = checkpoint

    def _check_whole(self, old: GroupRecord | None, group: GroupRecord) -> None:
        """After the whole decision: a group that has just become ready has every member settled, and enough of them."""
        if group.ready_order is None or (old is not None and old.ready_order is not None):
            return
        slots = [self.members[group.id, number] for number in range(group.size)]
        pending = [slot.member for slot in slots if slot.state == "pending"]
        filling = self._filling(group.id)
        if pending or len({rollout.uid for rollout in filling}) != group.usable:
            raise Violation("E3", f"group {group.id} is ready with members {pending} pending and {len(filling)} rollouts for {group.usable} members", group.id)
        if group.purpose == "train" and group.usable < self._laws.min_group_size:
            raise Violation("E3", f"group {group.id} is ready with {group.usable} members; {self._laws.min_group_size} are needed", group.id)

    def _check_filtered(self, old: GroupRecord | None, group: GroupRecord) -> None:
        """A group has become ready only if its rewards differ, where that is the law, and was dropped for that only if they do not."""
        if group.purpose != "train" or (old is not None and old.ready_order is not None):
            return
        rewards = {rollout.reward for rollout in self._filling(group.id)}
        if group.ready_order is not None and "zero_variance" in self._laws.filters and len(rewards) < 2:
            raise Violation("E5", f"group {group.id} is ready with rewards {rewards}, from which nothing can be learned", group.id)
        if group.reason == "filtered:zero_variance" and ("zero_variance" not in self._laws.filters or len(rewards) > 1):
            raise Violation("E1", f"group {group.id} is dropped for rewards that are alike and are {rewards}", group.id)

    def _check_credit_is_back(self, version: Version) -> None:
        plan = self.plans.get(version.update) if version.update is not None else None
        for planned in plan.groups if plan is not None else ():
            if self.groups[planned.id].credit and not self.versions_after(version):
                raise Violation("D5", f"group {planned.id} holds credit after version {version.version}, which it made, is live", planned.id)

    def versions_after(self, version: Version) -> bool:
        """Whether the update was made again since: its newer plan has another version to wait for."""
        return any(other.update == version.update for number, other in self.versions.items() if number > version.version)


def unfinished(groups: Iterable[GroupRecord]) -> list[GroupRecord]:
    """Training groups that are neither delivered nor given up."""
    return [group for group in groups if group.purpose == "train" and group.state in ("open", "complete", "ready")]
