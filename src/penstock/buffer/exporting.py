"""Stored rollouts as rows for other tools: one line of JSON each, in the order in which their groups were opened, whatever became of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.buffer.intake import decode_annotation, decode_rollout
from penstock.buffer.selection import Selection
from penstock.buffer.store import Store
from penstock.errors import CorruptError, InputError, SchemaError, UnknownError
from penstock.types import GroupRecord, Json, Payload, RolloutRecord
from penstock.wire import encode_json, parse_json, write_body


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRow:
    """One stored rollout."""

    run: str
    group_id: str
    state: str
    """Of its group."""
    reason: str | None
    """Why its group was dropped."""
    purpose: str
    environment: str
    problem_id: str
    member: int
    retry: int
    uid: str
    status: str
    reward: float | None
    failure: str | None
    stale: bool
    stored_at: float
    tokens: int
    sampled_tokens: int
    oldest_version: int | None
    newest_version: int | None
    updates: tuple[int, ...]
    """Updates that its group was cut into."""
    digest: str
    """xxh3-128 of the bytes as they were accepted."""
    annotations: tuple[str, ...]
    """Names of its annotations; a failed one as `name(reason)`."""
    rollout: Json = None
    """The rollout itself, as JSON; None if its bytes cannot be had."""
    damaged: str | None = None
    """Why they cannot."""


def export_rows(store: Store, run: str, selection: Selection) -> Iterator[ExportRow]:
    """The rows that are meant, one at a time: nothing is held but the one. Blocks; not for an event loop."""
    for group in store.scan_groups(run):
        if not selection.takes_group(group):
            continue
        annotations: dict[str, list[str]] = {}
        for found in store.annotations(run, group.id):
            annotations.setdefault(found.rollout_uid, []).append(found.name if found.failed is None else f"{found.name}({found.failed})")
        for rollout in store.rollouts(run, group.id):
            if selection.takes_rollout(rollout):
                yield _row(store, group, rollout, tuple(annotations.get(rollout.uid, ())))


def export_lines(store: Store, run: str, selection: Selection, *, bytes_at_once: int = 1 << 18) -> Iterator[bytes]:
    """The rows as lines of JSON, several at a time."""
    piece, size = [], 0
    for row in export_rows(store, run, selection):
        line = write_body(row) + b"\n"
        piece.append(line)
        size += len(line)
        if size >= bytes_at_once:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)


def _row(store: Store, group: GroupRecord, rollout: RolloutRecord, annotations: tuple[str, ...]) -> ExportRow:
    content, damaged = None, None
    try:
        content = rollout_json(store.payload(rollout.run, rollout.uid))
    except (CorruptError, UnknownError, InputError, SchemaError) as error:
        damaged = str(error)
    return ExportRow(
        run=group.run,
        group_id=group.id,
        state=group.state.value,
        reason=group.reason,
        purpose=group.purpose.value,
        environment=group.environment,
        problem_id=group.problem_id,
        member=rollout.member,
        retry=rollout.retry,
        uid=rollout.uid,
        status=rollout.status.value,
        reward=rollout.reward,
        failure=rollout.failure,
        stale=rollout.stale,
        stored_at=rollout.stored_at,
        tokens=rollout.tokens,
        sampled_tokens=rollout.sampled_tokens,
        oldest_version=rollout.oldest_version,
        newest_version=rollout.newest_version,
        updates=group.updates,
        digest=rollout.digest,
        annotations=annotations,
        rollout=content,
        damaged=damaged,
    )


def rollout_json(payload: Payload) -> Json:
    """The accepted bytes of a rollout as a JSON value, without their envelope. What came as JSON in another form is given as it came."""
    return _bare(payload.body if payload.content_type == "json" else encode_json(decode_rollout(payload.body, "msgpack")))


def annotation_json(payload: Payload) -> Json:
    """Likewise, of an annotation."""
    return _bare(payload.body if payload.content_type == "json" else encode_json(decode_annotation(payload.body, "msgpack")))


def _bare(body: bytes) -> Json:
    value = parse_json(body)
    return value["value"] if isinstance(value, dict) and value.keys() == {"schema", "kind", "value"} else value
