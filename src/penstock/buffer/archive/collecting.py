"""What goes into the next archive file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.buffer.archive.config import ArchiveConfig
from penstock.buffer.archive.files import Written
from penstock.buffer.archive.rows import Row, SettledGroup, rows_of
from penstock.buffer.store.protocol import Store
from penstock.errors import CorruptError, InputError, SchemaError
from penstock.types import AnnotationRecord, ArchiveFile, GroupRecord, MemberState, Moved, Payload, Record, RolloutRecord
from penstock.wire import digest

MOST_GROUPS = 4096
MOST_BYTES = 16 << 20
"""What one file takes at most, counted in accepted bytes: it is made in memory, and its bytes leave the store in one transaction."""
NOTHING = ""
"""The archive file of a group that had no bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Groups for one file."""

    groups: tuple[SettledGroup, ...] = ()
    rows: tuple[Row, ...] = ()
    """Of all of them."""
    damaged: tuple[tuple[str, str], ...] = ()
    """Groups that cannot be archived because some of their bytes cannot be read, and what is wrong. They stay where they are."""
    look_again_at: float = 0.0
    """Before that there cannot be enough for a file."""


def collect(store: Store, run: str, config: ArchiveConfig, now: float, *, without: Container[str] = ()) -> Collected:
    """The next groups that are old enough, oldest first; none while there are too few to be worth a file and none has waited long."""
    settled = [group for group in store.settled_groups(run, MOST_GROUPS) if group.id not in without]
    waiting = [group for group in settled if ended_at(group) <= now - config.after_seconds]
    num_rollouts = sum(group.size for group in waiting)
    longest = max((now - config.after_seconds - ended_at(group) for group in waiting), default=-1.0)
    if num_rollouts < config.rollouts_per_file and longest < config.most_wait_seconds:
        return Collected(look_again_at=_enough_at(settled, config, now))
    groups: list[SettledGroup] = []
    rows: list[Row] = []
    damaged: list[tuple[str, str]] = []
    num_rollouts = num_bytes = 0
    for group in waiting:
        if num_rollouts >= config.rollouts_per_file or num_bytes >= MOST_BYTES:
            break
        try:
            whole = gather(store, group)
            rows += rows_of(whole)
        except (CorruptError, SchemaError, InputError) as error:
            damaged.append((group.id, str(error)))
            continue
        groups.append(whole)
        num_rollouts += len(whole.rollouts)
        num_bytes += sum(len(payload.body) for _, payload in (*whole.rollouts, *whole.annotations))
    return Collected(groups=tuple(groups), rows=tuple(rows), damaged=tuple(damaged))


def _enough_at(settled: Iterable[GroupRecord], config: ArchiveConfig, now: float) -> float:
    """When these, with whatever ends from now on, can be enough for a file at the earliest."""
    ends = sorted((ended_at(group), group.size) for group in settled)
    num_rollouts = itertools.accumulate(size for _, size in ends)
    enough = (end for (end, _), count in zip(ends, num_rollouts, strict=True) if count >= config.rollouts_per_file)
    soonest = next(enough, now)
    if ends:
        soonest = min(soonest, ends[0][0] + config.most_wait_seconds)
    return soonest + config.after_seconds


def gather(store: Store, group: GroupRecord) -> SettledGroup:
    """A group with every byte that is stored for it."""
    return SettledGroup(
        group=group,
        rollouts=tuple((rollout, _payload(store, rollout)) for rollout in store.rollouts(group.run, group.id)),
        annotations=tuple((found, _payload(store, found)) for found in store.annotations(group.run, group.id)),
        counted=frozenset(member.uid for member in store.members(group.run, group.id) if member.uid and member.state is MemberState.ACCEPTED),
    )


def filed(
    groups: tuple[SettledGroup, ...], written: Written | None, *, store_directory: Path, number: int, updates: Mapping[str, int], now: float
) -> list[Record]:
    """What the store is told about `groups` in one transaction, once they are in a file; None if they have no bytes.

    `updates` names the update of groups whose record does not: those of a skipped plan.
    """
    if written is None:
        return [replace(settled.group, archive=NOTHING) for settled in groups]
    name = os.path.relpath(written.path, store_directory)
    planned = [update for settled in groups for update in settled.group.updates]
    planned += [updates[settled.group.id] for settled in groups if settled.group.id in updates]
    file = ArchiveFile(
        run=groups[0].group.run,
        name=name,
        number=number,
        digest=written.digest,
        size_bytes=written.size_bytes,
        rows=written.rows,
        groups=len(groups),
        newest_update=max(planned, default=None),
        newest_ended_at=max(ended_at(settled.group) for settled in groups),
        written_at=now,
    )
    records: list[Record] = [file]
    row = 0
    for settled in groups:
        rows = {rollout.uid: row + place for place, (rollout, _) in enumerate(settled.rollouts)}
        records.append(replace(settled.group, archive=name if settled.rollouts else NOTHING))
        records += [_moved(payload, name, rows[rollout.uid]) for rollout, payload in settled.rollouts]
        records += [_moved(payload, name, rows[found.rollout_uid]) for found, payload in settled.annotations]
        row += len(settled.rollouts)
    return records


def archive_file_of(store: Store, group: GroupRecord) -> ArchiveFile | None:
    """The file that holds the bytes of a group's rollouts, also when it was retired; None while they are in the store, or if it never had any."""
    return next((file for file in store.archive_files(group.run) if file.name == group.archive), None) if group.archive else None


def ended_at(group: GroupRecord) -> float:
    """When nothing more could happen to a settled group."""
    return group.ended_at if group.ended_at is not None else group.ready_at or 0.0


def _payload(store: Store, record: RolloutRecord | AnnotationRecord) -> Payload:
    payload = store.payload(record.run, record.uid)
    # The archive must not make sound what was not.
    if digest(payload.body) != record.digest:
        raise CorruptError(f"{record.uid!r} was accepted with digest {record.digest} and holds other bytes")
    return payload


def _moved(payload: Payload, name: str, row: int) -> Moved:
    return Moved(run=payload.run, uid=payload.uid, content_type=payload.content_type, digest=payload.digest, file=name, row=row)
