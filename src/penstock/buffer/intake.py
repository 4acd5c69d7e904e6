"""From bytes of a client to what the laws look at: decoded strictly, counted, and kept as they came."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import InputError, InvalidError
from penstock.trace import facts
from penstock.types import Annotation, AnnotationRecord, Payload, Rollout, RolloutRecord
from penstock.wire import ContentType, decode_json, decode_msgpack, digest, view_rollouts

Intake = tuple[RolloutRecord, Payload]
NOTE = "annotation:"
"""Begins the uids under which annotations are stored, beside the rollouts."""


def rollout_intakes(run: str, bodies: Sequence[bytes], content_type: ContentType) -> list[Intake | InputError]:
    """As `rollout_intake` for each of several that came together, at a fraction of the cost. What it would raise stands in the rollout's place."""
    views = view_rollouts(bodies) if content_type == "msgpack" else [None] * len(bodies)
    found: list[Intake | InputError] = []
    for body, view in zip(bodies, views, strict=True):
        try:
            found.append(_intake(run, body, content_type, decode_rollout(body, content_type) if view is None else view))
        except InputError as error:
            found.append(error)
    return found


def rollout_intake(run: str, body: bytes, content_type: ContentType) -> Intake:
    """The record and payload of an encoded rollout. Raises `InputError` naming the field if it may not be stored."""
    return _intake(run, body, content_type, decode_rollout(body, content_type))


def with_payload(record: RolloutRecord, body: bytes, content_type: ContentType) -> Intake:
    """A record with the bytes that it is of."""
    return record, Payload(run=record.run, uid=record.uid, content_type=content_type, body=body, digest=record.digest)


def _intake(run: str, body: bytes, content_type: ContentType, rollout: Rollout) -> Intake:
    if rollout.run != run:
        raise InvalidError(f"rollout.run: {rollout.run!r} was written to run {run!r}")
    if rollout.rollout_uid.startswith(NOTE):
        raise InvalidError(f"rollout.rollout_uid: must not begin with {NOTE!r}, got {rollout.rollout_uid!r}")
    counted = facts(rollout)
    record = RolloutRecord(
        run=run,
        uid=rollout.rollout_uid,
        group_id=rollout.group_id,
        member=rollout.member,
        retry=rollout.retry,
        status=rollout.status,
        digest=digest(body),
        environment=rollout.environment,
        problem_id=rollout.problem_id,
        reward=rollout.reward,
        tokens=counted.tokens,
        sampled_tokens=counted.sampled_tokens,
        prefix_tokens=counted.prefix_tokens,
        prefix_digest=counted.prefix_digest,
        oldest_version=counted.oldest_version,
        newest_version=counted.newest_version,
        versions=counted.versions,
        version_tokens=counted.version_tokens,
        rewards=rollout.rewards,
        failure=rollout.failure,
    )
    return with_payload(record, body, content_type)


def annotation_intake(run: str, body: bytes, content_type: ContentType) -> tuple[AnnotationRecord, Payload]:
    """The record and payload of an encoded annotation."""
    annotation = decode_annotation(body, content_type)
    if annotation.run != run:
        raise InvalidError(f"annotation.run: {annotation.run!r} was written to run {run!r}")
    if annotation.step is not None and not 0 <= annotation.step < 2**31:
        raise InvalidError(f"annotation.step: must be 0 to 2**31, got {annotation.step}")
    content = digest(body)
    step = "" if annotation.step is None else annotation.step
    uid = f"{NOTE}{digest(f'{annotation.rollout_uid} {annotation.name} {step}'.encode())}"
    record = AnnotationRecord(
        run=run,
        rollout_uid=annotation.rollout_uid,
        group_id="",
        name=annotation.name,
        step=annotation.step,
        uid=uid,
        digest=content,
        failed=annotation.failed,
    )
    return record, Payload(run=run, uid=uid, content_type=content_type, body=body, digest=content)


def decode_rollout(body: bytes, content_type: ContentType) -> Rollout:
    """A rollout from its accepted bytes."""
    return decode_json(body, Rollout) if content_type == "json" else decode_msgpack(body, Rollout)


def decode_annotation(body: bytes, content_type: ContentType) -> Annotation:
    """An annotation from its accepted bytes."""
    return decode_json(body, Annotation) if content_type == "json" else decode_msgpack(body, Annotation)
