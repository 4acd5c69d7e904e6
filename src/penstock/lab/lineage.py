"""Checks of what was learned: do plans, outcomes, versions, checkpoints and weights tell one story."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.errors import PenstockError
from penstock.lab.archive import Archive
from penstock.lab.findings import Looked
from penstock.types import GroupState, Plan, Purpose, RolloutRecord


def planned(archive: Archive) -> Looked:
    """Every outcome has its plan."""
    ledger, broken = archive.ledger, []
    updates = sorted(ledger.outcomes)
    if updates != list(range(len(updates))):
        broken.append(f"outcomes have gaps: {len(updates)} of them, the last of update {updates[-1]}")
    for update in updates:
        plan = archive.buffer.store.plan(archive.run, update)
        if plan is None or plan.void:
            broken.append(f"update {update} has an outcome and no plan")
    return f"{len(updates)} outcomes", broken


def used_once(archive: Archive) -> Looked:
    """No group trained more updates than it may."""
    uses = Counter(group.id for plan in _plans(archive) if _is_applied(archive, plan.update) for group in plan.groups)
    most = archive.ledger.laws.max_reuse
    return f"{len(uses)} groups in plans", [f"group {id} trained {count} updates, {most} allowed" for id, count in uses.items() if count > most]


def whole(archive: Archive) -> Looked:
    """Groups were cut whole, hold what was planned, and were meant for training."""
    num_groups, broken = 0, []
    for plan in _plans(archive):
        for group in plan.groups:
            num_groups += 1
            try:
                found = archive.buffer.fetch(archive.run, group.id, group.digest)
            except PenstockError as error:
                broken.append(f"update {plan.update}: {error}")
                continue
            members = [rollout.member for rollout, _ in found.rollouts]
            if len(set(members)) != len(members) or len(members) != found.group.usable:
                broken.append(f"update {plan.update}: group {group.id} holds members {members}, {found.group.usable} expected")
            if found.group.purpose is not Purpose.TRAIN:
                broken.append(f"update {plan.update}: group {group.id} is for {found.group.purpose} and was cut")
    return f"{num_groups} planned groups", broken


def spent(archive: Archive) -> Looked:
    """What the checkpoints consumed against what the store calls spent."""
    ledger = archive.ledger
    consumed = {group.id for plan in _plans(archive) if plan.update < ledger.newest_checkpoint and _is_applied(archive, plan.update) for group in plan.groups}
    ended = {group.id for group in archive.buffer.store.scan_groups(archive.run) if group.state is GroupState.SPENT}
    broken = [f"group {id} is spent but no checkpoint contains it" for id in sorted(ended - consumed)]
    if ledger.laws.max_reuse == 1:
        broken += [f"group {id} is in a checkpoint but not spent" for id in sorted(consumed - ended)]
    return f"{len(consumed)} groups that the newest checkpoint contains", broken


def fresh(archive: Archive) -> Looked:
    """No trained token was older than `max_lag`, and each names weights that were recorded."""
    num_rollouts, broken = 0, []
    for plan in _plans(archive):
        for group in plan.groups:
            for rollout in archive.buffer.store.rollouts(archive.run, group.id):
                if rollout.status.usable and not rollout.stale:
                    num_rollouts += 1
                    wrong = _wrong_versions(archive, plan, rollout)
                    if wrong is not None:
                        broken.append(f"update {plan.update}: rollout {rollout.uid} {wrong}")
    return f"versions of {num_rollouts} trained rollouts", broken


def _wrong_versions(archive: Archive, plan: Plan, rollout: RolloutRecord) -> str | None:
    most = archive.ledger.laws.max_lag
    if rollout.oldest_version is None or plan.newest_version - rollout.oldest_version > most:
        return f"of version {rollout.oldest_version} was cut when version {plan.newest_version} was the newest, max_lag is {most}"
    unknown = [version for version in rollout.versions if version not in archive.ledger.versions or version > plan.newest_version]
    return f"names version {unknown[0]}, which was not recorded when it was cut" if unknown else None


def named(archive: Archive) -> Looked:
    """Every version is one set of weights, and an outcome's is the registry's."""
    ledger, broken = archive.ledger, []
    for outcome in ledger.outcomes.values():
        if outcome.kind == "applied":
            version = ledger.versions.get(-1 if outcome.version is None else outcome.version)
            if version is None or (version.digest, version.update) != (outcome.digest, outcome.update):
                broken.append(f"update {outcome.update} recorded version {outcome.version} as {outcome.digest}, and the registry does not")
    if sorted(ledger.versions) != list(range(len(ledger.versions))):
        broken.append("version numbers have gaps")
    return f"{len(ledger.versions)} versions", broken


def kept(archive: Archive) -> Looked:
    """Checkpoints that resume may start from are whole, and hold the weights that their version names."""
    from penstock.learner.checkpoints import read_checkpoint
    from penstock.models import weights_digest

    broken = []
    for record in archive.ledger.checkpoints.values():
        try:
            state = read_checkpoint(archive.run_dir / "checkpoints", record.update, run=archive.run, digest=record.digest).state
        except PenstockError as error:
            broken.append(str(error))
            continue
        version = archive.ledger.versions.get(state.version)
        if version is None or weights_digest(state.weights) != version.digest:
            broken.append(f"checkpoint update_{record.update} holds other weights than version {state.version}")
    return f"{len(archive.ledger.checkpoints)} kept checkpoints", broken


def servable(archive: Archive) -> Looked:
    """The weights that a server may be asked for are in their files."""
    from penstock.models import read_weights, weights_digest, weights_path

    ledger, broken = archive.ledger, []
    versions = [version for version in ledger.versions.values() if version.version >= ledger.newest_version - ledger.laws.max_lag]
    for version in versions:
        try:
            found = weights_digest(read_weights(weights_path(archive.run_dir / "weights", version.digest)))
        except PenstockError as error:
            broken.append(f"version {version.version}: {error}")
            continue
        if found != version.digest:
            broken.append(f"version {version.version}: the file of {version.digest} holds {found}")
    return f"weights of the newest {len(versions)} versions", broken


def _plans(archive: Archive) -> Iterator[Plan]:
    """Plans that count, in order; the last may have no outcome yet."""
    for update in range(archive.ledger.next_update + 1):
        plan = archive.buffer.store.plan(archive.run, update)
        if plan is not None and not plan.void:
            yield plan


def _is_applied(archive: Archive, update: int) -> bool:
    outcome = archive.ledger.outcomes.get(update)
    return outcome is not None and outcome.kind == "applied"
