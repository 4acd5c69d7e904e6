"""A group as rows of an archive file: what the ledger knows of each rollout, what its bytes say, and the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.buffer.intake import decode_rollout
from penstock.types import AnnotationRecord, GroupRecord, Payload, Rollout, RolloutRecord, Segment, Trace, kept_segments
from penstock.wire import canonical_json, parse_json

Row = dict[str, Any]
"""Values by column. Those of `ids`, `logprobs` and `token_versions` are arrays, where the two constants stand for null; or None."""
NO_LOGPROB = np.nan
NO_VERSION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledGroup:
    """A group that nothing will happen to any more, with all its bytes."""

    group: GroupRecord
    rollouts: tuple[tuple[RolloutRecord, Payload], ...]
    """Every stored try."""
    annotations: tuple[tuple[AnnotationRecord, Payload], ...]
    counted: frozenset[str] = frozenset()
    """Uids that filled a slot."""


def rows_of(settled: SettledGroup) -> list[Row]:
    """One row for each rollout, in their order. An annotation goes with its rollout."""
    common = _group_columns(settled.group)
    rows = []
    for rollout, payload in settled.rollouts:
        annotations = [_annotation(record, body) for record, body in settled.annotations if record.rollout_uid == rollout.uid]
        facts = _rollout_columns(rollout, counted=rollout.uid in settled.counted)
        rows.append(common | facts | _content(rollout, payload) | {"annotations": annotations} | _payload_columns(payload))
    return rows


def _group_columns(group: GroupRecord) -> Row:
    return {
        "run": group.run,
        "group": group.id,
        "environment": group.environment,
        "problem": group.problem_id,
        "purpose": group.purpose.value,
        "group_size": group.size,
        "group_seed": group.seed,
        "group_state": group.state.value,
        "group_reason": group.reason,
        "group_digest": group.digest,
        "group_tokens": group.tokens,
        "updates": list(group.updates),
        "lease": group.lease,
        "opened_at": _time(group.opened_at),
        "completed_at": _time(group.completed_at),
        "ready_at": _time(group.ready_at),
        "bound_at": _time(group.bound_at),
        "ended_at": _time(group.ended_at),
    }


def _rollout_columns(rollout: RolloutRecord, *, counted: bool) -> Row:
    return {
        "uid": rollout.uid,
        "member": rollout.member,
        "retry": rollout.retry,
        "status": rollout.status.value,
        "failure": rollout.failure,
        "counted": counted,
        "stale": rollout.stale,
        "reward": rollout.reward,
        "rewards": [{"name": name, "value": value} for name, value in rollout.rewards.items()],
        "tokens": rollout.tokens,
        "sampled_tokens": rollout.sampled_tokens,
        "prefix_tokens": rollout.prefix_tokens,
        "versions": list(rollout.versions),
        "version_tokens": list(rollout.version_tokens),
        "stored_at": _time(rollout.stored_at),
    }


def _payload_columns(payload: Payload) -> Row:
    return {"content_type": payload.content_type, "digest": payload.digest, "body": payload.body}


def _annotation(record: AnnotationRecord, payload: Payload) -> Row:
    about = {"name": record.name, "step": record.step, "failed": record.failed, "uid": record.uid, "stored_at": _time(record.stored_at)}
    return about | _payload_columns(payload)


def _content(record: RolloutRecord, payload: Payload) -> Row:
    """Columns that say what the bytes say. Items of the compatible routes have no trace: of them only the messages are known."""
    if record.form == "item":
        return _item_columns(payload)
    rollout = decode_rollout(payload.body, payload.content_type)
    return {
        "messages": [{"role": turn.role, "content": turn.message} for turn in rollout],
        "metadata": canonical_json(dict(rollout.metadata)).decode() if rollout.metadata else None,
    } | _token_columns(rollout)


def _item_columns(payload: Payload) -> Row:
    empty: Row = {"ids": None, "logprobs": None, "token_versions": None, "segments": None}
    item = parse_json(payload.body) if payload.content_type == "json" else {}
    messages = item.get("messages")
    extra = item.get("extra_info")
    return empty | {
        "messages": [_message(found) for found in messages] if isinstance(messages, list) else None,
        "metadata": canonical_json(extra).decode() if isinstance(extra, dict) else None,
    }


def _message(found: object) -> Row:
    known = found if isinstance(found, dict) else {}
    role, content = known.get("role"), known.get("content")
    return {"role": role if isinstance(role, str) else None, "content": content if isinstance(content, str) else None}


def _token_columns(rollout: Rollout) -> Row:
    segments = rollout.trace.segments
    return {
        "ids": _joined([segment.ids for segment in segments], np.int32),
        "logprobs": _joined([_filled(segment, NO_LOGPROB) if segment.logprobs is None else segment.logprobs for segment in segments], np.float32),
        "token_versions": _joined([_versions(segment) for segment in segments], np.int64),
        "segments": _segments(rollout.trace),
    }


def _versions(segment: Segment) -> npt.NDArray[Any]:
    if not segment.versions:
        return _filled(segment, NO_VERSION)
    return np.repeat([run.version for run in segment.versions], [run.count for run in segment.versions])


def _filled(segment: Segment, value: float) -> npt.NDArray[Any]:
    return np.full(len(segment.ids), value)


def _joined(pieces: Sequence[npt.NDArray[Any]], kind: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate(pieces).astype(kind) if pieces else np.empty(0, kind)


def _segments(trace: Trace) -> Sequence[Row]:
    kept = kept_segments(trace)
    return [
        {
            "parent": segment.parent,
            "length": len(segment.ids),
            "source": segment.source.value,
            # What hangs on an abandoned segment is abandoned with it.
            "abandoned": None if kept[place] else segment.abandoned or "with its parent",
        }
        for place, segment in enumerate(trace.segments)
    ]


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
