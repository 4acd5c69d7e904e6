"""Checks of what was learned, as far as the buffer knows: do plans, outcomes and versions tell one story."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.buffer.checks.findings import Held, Looked
from penstock.errors import PenstockError, RetiredError
from penstock.types import GroupState, Plan, Purpose, RolloutRecord


def planned(held: Held) -> Looked:
    """Every outcome has its plan."""
    ledger, broken = held.ledger, []
    updates = sorted(ledger.outcomes)
    if updates != list(range(len(updates))):
        broken.append(f"outcomes have gaps: {len(updates)} of them, the last of update {updates[-1]}")
    for update in updates:
        plan = held.buffer.store.plan(held.run, update)
        if plan is None or plan.void:
            broken.append(f"update {update} has an outcome and no plan")
    return f"{len(updates)} outcomes", broken


def used_once(held: Held) -> Looked:
    """No group trained more updates than it may."""
    uses = Counter(group.id for plan in _plans(held) if _is_applied(held, plan.update) for group in plan.groups)
    most = held.ledger.laws.max_reuse
    return f"{len(uses)} groups in plans", [f"group {id} trained {count} updates, {most} allowed" for id, count in uses.items() if count > most]


def whole(held: Held) -> Looked:
    """Groups were cut whole, hold what was planned, and were meant for training."""
    num_groups, broken = 0, []
    first_needed = min(held.ledger.checkpoints, default=0)
    for plan in _plans(held):
        for group in plan.groups:
            num_groups += 1
            try:
                found = held.buffer.fetch(held.run, group.id, group.digest)
            except PenstockError as error:
                # Retention may give up what no kept checkpoint can need.
                if not (isinstance(error, RetiredError) and plan.update < first_needed):
                    broken.append(f"update {plan.update}: {error}")
                continue
            members = [rollout.member for rollout, _ in found.rollouts]
            if len(set(members)) != len(members) or len(members) != found.group.usable:
                broken.append(f"update {plan.update}: group {group.id} holds members {members}, {found.group.usable} expected")
            if found.group.purpose is not Purpose.TRAIN:
                broken.append(f"update {plan.update}: group {group.id} is for {found.group.purpose} and was cut")
    return f"{num_groups} planned groups", broken


def spent(held: Held) -> Looked:
    """What the checkpoints consumed against what the store calls spent. What outside consumers have spent is told by their leases."""
    ledger = held.ledger
    consumed = {group.id for plan in _plans(held) if plan.update < ledger.newest_checkpoint and _is_applied(held, plan.update) for group in plan.groups}
    ended = {group.id for group in held.buffer.store.scan_groups(held.run) if group.state is GroupState.SPENT and group.lease is None}
    broken = [f"group {id} is spent but no checkpoint contains it" for id in sorted(ended - consumed)]
    if ledger.laws.max_reuse == 1:
        broken += [f"group {id} is in a checkpoint but not spent" for id in sorted(consumed - ended)]
    return f"{len(consumed)} groups that the newest checkpoint contains", broken


def fresh(held: Held) -> Looked:
    """No trained token was older than `max_lag`, and each names weights that were recorded."""
    num_rollouts, broken = 0, []
    for plan in _plans(held):
        for group in plan.groups:
            for rollout in held.buffer.store.rollouts(held.run, group.id):
                if rollout.status.usable and not rollout.stale:
                    num_rollouts += 1
                    wrong = _wrong_versions(held, plan, rollout)
                    if wrong is not None:
                        broken.append(f"update {plan.update}: rollout {rollout.uid} {wrong}")
    return f"versions of {num_rollouts} trained rollouts", broken


def _wrong_versions(held: Held, plan: Plan, rollout: RolloutRecord) -> str | None:
    most = held.ledger.laws.max_lag
    if rollout.oldest_version is None or plan.newest_version - rollout.oldest_version > most:
        return f"of version {rollout.oldest_version} was cut when version {plan.newest_version} was the newest, max_lag is {most}"
    unknown = [version for version in rollout.versions if version not in held.ledger.versions or version > plan.newest_version]
    return f"names version {unknown[0]}, which was not recorded when it was cut" if unknown else None


def named(held: Held) -> Looked:
    """Every version is one set of weights, and an outcome's is the registry's."""
    ledger, broken = held.ledger, []
    for outcome in ledger.outcomes.values():
        if outcome.kind == "applied":
            version = ledger.versions.get(-1 if outcome.version is None else outcome.version)
            if version is None or (version.digest, version.update) != (outcome.digest, outcome.update):
                broken.append(f"update {outcome.update} recorded version {outcome.version} as {outcome.digest}, and the registry does not")
    if sorted(ledger.versions) != list(range(len(ledger.versions))):
        broken.append("version numbers have gaps")
    if not ledger.versions:
        broken.append("the weights that the run began with, version 0, are not on record")
    return f"{len(ledger.versions)} versions", broken


def _plans(held: Held) -> Iterator[Plan]:
    """Plans that count, in order; the last may have no outcome yet."""
    for update in range(held.ledger.next_update + 1):
        plan = held.buffer.store.plan(held.run, update)
        if plan is not None and not plan.void:
            yield plan


def _is_applied(held: Held, update: int) -> bool:
    outcome = held.ledger.outcomes.get(update)
    return outcome is not None and outcome.kind == "applied"
