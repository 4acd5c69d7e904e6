"""`penstock verify`: reconciles what writers were told, what the store holds and what checkpoints consumed. Each finding names a promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.lab.archive import Archive, opened
from penstock.ledger import balance, imbalance, recount
from penstock.types import GroupState, Plan, Purpose
from penstock.wire import digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One promise that was looked into."""

    promise: str
    checked: str
    """What was looked at, with how many."""
    broken: tuple[str, ...] = ()
    """What is wrong, a sentence each; empty if nothing is."""


def verify(run_dir: Path) -> tuple[Finding, ...]:
    """Check a run directory. Nothing in it is changed."""
    with opened(run_dir) as archive:
        return tuple(check(archive) for check in _CHECKS)


def _records(archive: Archive) -> Finding:
    payloads, broken = 0, list(archive.buffer.store.corrupt())
    for rollout in archive.buffer.store.scan_rollouts(archive.run):
        payloads += 1
        try:
            body = archive.buffer.store.payload(archive.run, rollout.uid).body
        except PenstockError as error:
            broken.append(str(error))
            continue
        if digest(body) != rollout.digest:
            broken.append(f"rollout {rollout.uid} was accepted with digest {rollout.digest} and holds other bytes")
    return Finding(promise="D3", checked=f"bytes of {payloads} stored rollouts", broken=tuple(broken))


def _acknowledged(archive: Archive) -> Finding:
    told: dict[str, str] = {}
    for path in sorted((archive.run_dir / "acks").glob("*.log")):
        # A last line without its end was being written when its process died; it was never relied on.
        told |= dict(line.split(" ", 1) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n") and " " in line)
    told = {uid: content.strip() for uid, content in told.items()}
    broken = []
    for uid, content in told.items():
        stored = archive.buffer.store.rollout(archive.run, uid)
        if stored is None:
            broken.append(f"rollout {uid} was acknowledged and is not in the store")
        elif stored.digest != content:
            broken.append(f"rollout {uid} was acknowledged with digest {content} and is stored with {stored.digest}")
    return Finding(promise="D1", checked=f"{len(told)} acknowledgements that writers noted", broken=tuple(broken))


def _conserved(archive: Archive) -> Finding:
    store = archive.buffer.store
    groups = list(store.scan_groups(archive.run))
    members = [member for group in groups for member in store.members(archive.run, group.id)]
    broken = []
    if recount(groups, members) != tuple(found for found in balance(archive.ledger) if found.opened):
        broken.append("counting the records one by one gives another account than the ledger's own")
    if imbalance(archive.ledger):
        broken.append(f"{imbalance(archive.ledger)} groups, members or credits are unaccounted for")
    issued = sum(group.size for group in groups)
    if issued != len(members):
        broken.append(f"{issued} members were issued and {len(members)} are on record")
    return Finding(promise="D5", checked=f"{len(groups)} groups and {len(members)} members", broken=tuple(broken))


def _plans(archive: Archive) -> Iterator[Plan]:
    """Plans that count, in order."""
    update = 0
    while (plan := archive.buffer.store.plan(archive.run, update)) is not None:
        if not plan.void:
            yield plan
        update += 1


def _used_once(archive: Archive) -> Finding:
    outcomes = archive.ledger.outcomes
    uses = Counter(planned.id for plan in _plans(archive) if plan.update in outcomes and outcomes[plan.update].kind == "applied" for planned in plan.groups)
    most = archive.ledger.laws.max_reuse
    broken = tuple(f"group {group_id} trained {count} updates, {most} allowed" for group_id, count in uses.items() if count > most)
    return Finding(promise="E2", checked=f"{len(uses)} groups in plans", broken=broken)


def _whole(archive: Archive) -> Finding:
    planned_groups, broken = 0, []
    for plan in _plans(archive):
        for planned in plan.groups:
            planned_groups += 1
            try:
                group = archive.buffer.fetch(archive.run, planned.id, planned.digest)
            except PenstockError as error:
                broken.append(f"update {plan.update}: {error}")
                continue
            members = [rollout.member for rollout, _ in group.rollouts]
            if len(set(members)) != len(members) or len(members) != group.group.usable:
                broken.append(f"update {plan.update}: group {planned.id} holds members {members}, {group.group.usable} expected")
            if group.group.purpose is not Purpose.TRAIN:
                broken.append(f"update {plan.update}: group {planned.id} is for {group.group.purpose} and was cut")
    return Finding(promise="E3", checked=f"{planned_groups} planned groups", broken=tuple(broken))


def _fresh(archive: Archive) -> Finding:
    rollouts, broken, most = 0, [], archive.ledger.laws.max_lag
    for plan in _plans(archive):
        for planned in plan.groups:
            for rollout in archive.buffer.store.rollouts(archive.run, planned.id):
                if not rollout.status.usable or rollout.stale:
                    continue
                rollouts += 1
                if rollout.oldest_version is None or plan.newest_version - rollout.oldest_version > most:
                    broken.append(
                        f"update {plan.update}: rollout {rollout.uid} of version {rollout.oldest_version} at newest {plan.newest_version}, max_lag {most}"
                    )
                elif any(version not in archive.ledger.versions for version in rollout.versions):
                    broken.append(f"update {plan.update}: rollout {rollout.uid} names a version that was never recorded: {rollout.versions}")
    return Finding(promise="F1", checked=f"versions of {rollouts} trained rollouts", broken=tuple(broken))


def _versions(archive: Archive) -> Finding:
    ledger, broken = archive.ledger, []
    for outcome in ledger.outcomes.values():
        if outcome.kind == "applied" and ledger.versions[outcome.version or 0].digest != outcome.digest:
            broken.append(f"update {outcome.update} recorded version {outcome.version} with another digest than the registry has")
    if sorted(ledger.versions) != list(range(len(ledger.versions))):
        broken.append("version numbers have gaps")
    return Finding(promise="F2", checked=f"{len(ledger.versions)} versions", broken=tuple(broken))


def _spent(archive: Archive) -> Finding:
    """What the checkpoints consumed against what the store calls spent."""
    ledger, broken = archive.ledger, []
    consumed = {
        planned.id
        for plan in _plans(archive)
        if plan.update < ledger.newest_checkpoint and ledger.outcomes[plan.update].kind == "applied"
        for planned in plan.groups
    }
    spent = {group.id for group in archive.buffer.store.scan_groups(archive.run) if group.state is GroupState.SPENT}
    broken += [f"group {group_id} is spent but no checkpoint contains it" for group_id in sorted(spent - consumed)]
    reusable = ledger.laws.max_reuse > 1
    broken += [f"group {group_id} is in a checkpoint but not spent" for group_id in sorted(consumed - spent) if not reusable]
    return Finding(promise="D5", checked=f"{len(consumed)} groups that the newest checkpoint contains", broken=tuple(broken))


def _checkpoints(archive: Archive) -> Finding:
    from penstock.learner.checkpoints import read_checkpoint

    broken = []
    for record in archive.ledger.checkpoints.values():
        try:
            read_checkpoint(archive.run_dir / "checkpoints", record.update, run=archive.run, digest=record.digest)
        except PenstockError as error:
            broken.append(str(error))
    return Finding(promise="C1", checked=f"{len(archive.ledger.checkpoints)} kept checkpoints", broken=tuple(broken))


_CHECKS: tuple[Callable[[Archive], Finding], ...] = (
    _acknowledged,
    _records,
    _conserved,
    _used_once,
    _whole,
    _spent,
    _fresh,
    _versions,
    _checkpoints,
)
