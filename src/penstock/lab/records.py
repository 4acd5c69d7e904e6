"""Checks of what was written: is everything that was acknowledged there, byte for byte, and is every group and member accounted for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from penstock.buffer.intake import rollout_intake
from penstock.errors import CorruptError, InputError, SchemaError, UnknownError
from penstock.lab.archive import Archive
from penstock.lab.findings import Looked
from penstock.ledger import balance, imbalance, recount
from penstock.types import RolloutRecord
from penstock.wire import digest

_ACK = re.compile(r"(\S+) ([0-9a-f]{32})\n")


def acknowledged(archive: Archive) -> Looked:
    """Every rollout that a writer was told is durable, by the writers' own notes."""
    num_lines, broken = 0, []
    for path in sorted((archive.run_dir / "acks").glob("*.log")):
        for uid, told in _acks(path):
            num_lines += 1
            stored = archive.buffer.store.rollout(archive.run, uid)
            if stored is None:
                broken.append(f"rollout {uid} was acknowledged and is not in the store")
            elif stored.digest != told:
                broken.append(f"rollout {uid} was acknowledged with digest {told} and is stored with {stored.digest}")
    return f"{num_lines} acknowledgements that writers noted", broken


def _acks(path: Path) -> Iterator[tuple[str, str]]:
    """Lines `uid digest`. Notes are not synced, so the power may have gone while one was written: what is not a whole line says nothing."""
    with path.open(newline="\n") as file:
        for line in file:
            note = _ACK.fullmatch(line)
            if note is not None:
                yield note[1], note[2]


def stored(archive: Archive) -> Looked:
    """The bytes of every rollout, and that its record follows from them."""
    num_rollouts, broken = 0, []
    for rollout in archive.buffer.store.scan_rollouts(archive.run):
        num_rollouts += 1
        wrong = _wrong_bytes(archive, rollout)
        if wrong is not None:
            broken.append(wrong)
    return f"bytes of {num_rollouts} stored rollouts", broken


def _wrong_bytes(archive: Archive, rollout: RolloutRecord) -> str | None:
    try:
        payload = archive.buffer.store.payload(archive.run, rollout.uid)
    except CorruptError:
        return None  # the store has noted it, and `undamaged` tells
    except UnknownError:
        return f"rollout {rollout.uid} is on record but its bytes are not in the store"
    if digest(payload.body) != rollout.digest:
        return f"rollout {rollout.uid} was accepted with digest {rollout.digest} and holds other bytes"
    try:
        told, _ = rollout_intake(archive.run, payload.body, payload.content_type)
    except (InputError, SchemaError) as error:
        return f"rollout {rollout.uid} would not be accepted now: {error}"
    if replace(told, stale=rollout.stale, stored_at=rollout.stored_at) != rollout:
        return f"rollout {rollout.uid} is on record with facts that do not follow from its bytes"
    return None


def conserved(archive: Archive) -> Looked:
    """Every group and member is in exactly one place, counted in three ways."""
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
    return f"{len(groups)} groups and {len(members)} members", broken


def undamaged(archive: Archive) -> Looked:
    """Everything that was found damaged, in this look at the store or ever before. Comes last, when all of it was read."""
    damage = list(archive.buffer.store.corrupt())
    return f"{len(damage)} damaged records set aside", damage
