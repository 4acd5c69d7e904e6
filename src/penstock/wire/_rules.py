"""What the fields of the nouns may hold beyond their types. Checked when a noun is decoded and, by the same code, before it is encoded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from penstock.errors import InvalidError
from penstock.types import (
    Annotation,
    AnnotationRecord,
    CheckpointRecord,
    Group,
    GroupRecord,
    JournalEntry,
    LeaseRecord,
    MemberRecord,
    Outcome,
    Payload,
    Plan,
    PlannedGroup,
    Problem,
    ReaderRecord,
    Rollout,
    RolloutRecord,
    RunRecord,
    Sample,
    Segment,
    SessionRecord,
    Source,
    TermRecord,
    Trace,
    Version,
    VersionRun,
    WeightManifest,
)
from penstock.wire._fault import Fault
from penstock.wire._strict import show

ID_PATTERN = r"[A-Za-z0-9_.:/@+=%~-]{1,256}"
"""An id, but for the two dots that it may not have in a row."""
DIGEST_PATTERN = r"[A-Za-z0-9_:-]{0,128}"
_ID = re.compile(ID_PATTERN)
_DIGEST = re.compile(DIGEST_PATTERN)
# Asked for with every segment, and an enum takes its time to name a member.
_SAMPLED, _INJECTED = Source.SAMPLED, Source.INJECTED

IDS: dict[type, frozenset[str]] = {
    noun: frozenset(names.split())
    for noun, names in (
        (Annotation, "run rollout_uid name"),
        (AnnotationRecord, "run rollout_uid group_id name uid"),
        (CheckpointRecord, "run"),
        (Group, "run id environment problem_id"),
        (GroupRecord, "run id environment problem_id lease"),
        (JournalEntry, "run episode"),
        (LeaseRecord, "run lease consumer"),
        (MemberRecord, "run group_id session uid"),
        (Outcome, "run"),
        (Payload, "run uid"),
        (Plan, "run"),
        (PlannedGroup, "id"),
        (Problem, "id environment parent"),
        (ReaderRecord, "run reader"),
        (Rollout, "run environment problem_id group_id rollout_uid"),
        (RolloutRecord, "run uid group_id"),
        (RunRecord, "run"),
        (Sample, "run environment group_id rollout_uid"),
        (SessionRecord, "run session worker"),
        (TermRecord, "run owner"),
        (Version, "run policy"),
        (VersionRun, "policy"),
        (WeightManifest, "run policy"),
    )
}
"""Fields that hold ids."""

DIGESTS = frozenset(("digest", "prefix_digest", "config_digest", "template_digest", "tokenizer_digest"))
"""Fields of any noun that hold digests. They name files, so they have no dots or slashes."""

NAMED = frozenset(("rewards", "arrays", "fractions", "carry"))
"""Mappings of any noun whose keys are names: they become names of metrics and columns."""

COUNTS: dict[type, frozenset[str]] = {
    noun: frozenset(names.split())
    for noun, names in (
        (GroupRecord, "size order credit tokens longest usable pending"),
        (JournalEntry, "index"),
        (MemberRecord, "member retry"),
        (Outcome, "update version"),
        (Plan, "update tokens"),
        (Rollout, "member retry"),
        (RolloutRecord, "member retry tokens sampled_tokens prefix_tokens"),
        (Version, "version"),
        (VersionRun, "version"),
        (WeightManifest, "version num_bytes"),
    )
}
"""Integers that are never negative."""


def check_id(text: str, field: str) -> str:
    """`text`, if it may be an id: 1 to 256 of `A-Z a-z 0-9 _ . : / @ + = % ~ -`, without `..`. Else `InvalidError`.

    >>> check_id("math/0/17", "group_id")
    'math/0/17'
    >>> check_id("../x", "group_id")
    Traceback (most recent call last):
    penstock.errors.InvalidError: group_id must be 1 to 256 of A-Z a-z 0-9 _ . : / @ + = % ~ - without '..', got '../x'
    """
    try:
        return require_id(text)
    except Fault as fault:
        raise InvalidError(f"{field} {fault.message}") from None


def require_id(text: Any) -> str:
    """As `check_id`, for a field of a noun."""
    if type(text) is not str or _ID.fullmatch(text) is None or ".." in text:
        raise Fault(f"must be 1 to 256 of A-Z a-z 0-9 _ . : / @ + = % ~ - without '..', got {show(text)}")
    return text


def require_digest(text: Any) -> str:
    """A digest, or nothing yet."""
    if type(text) is not str or _DIGEST.fullmatch(text) is None:
        raise Fault(f"must be a digest: up to 128 of A-Z a-z 0-9 _ : -, got {show(text)}")
    return text


def _check_version_run(run: VersionRun) -> None:
    if isinstance(run.count, bool) or not isinstance(run.count, (int, np.integer)):
        raise Fault(f"must be an integer, got {show(run.count)}", ".count")
    if run.count < 1:
        raise Fault(f"must be 1 or more, got {run.count}", ".count")


def _check_segment(segment: Segment) -> None:
    num_tokens = len(segment.ids)
    if num_tokens == 0:
        raise Fault(f"must hold one token or more, got shape {segment.ids.shape}", ".ids")
    if segment.parent is not None and segment.parent < 0:
        raise Fault(f"must be 0 or more, got {segment.parent}", ".parent")
    if segment.logprobs is not None and len(segment.logprobs) != num_tokens:
        raise Fault(f"must have one entry for each of {num_tokens} tokens, got shape {segment.logprobs.shape}", ".logprobs")
    if segment.versions and (counted := _tokens_of(segment.versions)) != num_tokens:
        raise Fault(f"must count to {num_tokens} tokens, got {counted}", ".versions")
    if segment.arrays:
        _check_arrays(segment, num_tokens)
    if segment.media:
        _check_media(segment)
    _check_evidence(segment)


def _tokens_of(runs: Sequence[VersionRun]) -> int:
    # Nearly always there is one.
    return runs[0].count if len(runs) == 1 else sum([run.count for run in runs])


def _check_arrays(segment: Segment, num_tokens: int) -> None:
    for name, array in segment.arrays.items():
        if array.ndim == 0 or len(array) != num_tokens:
            raise Fault(f"must have one entry for each of {num_tokens} tokens, got shape {array.shape}", f".arrays[{name!r}]")


def _check_media(segment: Segment) -> None:
    for index, digest in enumerate(segment.media):
        if type(digest) is not str or not digest or _DIGEST.fullmatch(digest) is None:
            raise Fault(f"must be a digest: 1 to 128 of A-Z a-z 0-9 _ : -, got {show(digest)}", f".media[{index}]")


def _check_evidence(segment: Segment) -> None:
    """Sampled tokens say how likely they were and under which weights; injected ones may, if a scorer said so; others were never drawn."""
    if type(segment.source) is not Source:
        raise Fault(f"must be a Source, got {show(segment.source)}", ".source")
    if segment.source is _SAMPLED:
        if segment.logprobs is None:
            raise Fault("are missing: every sampled token has one", ".logprobs")
        if not segment.versions:
            raise Fault("are missing: every sampled token carries the version that sampled it", ".versions")
    elif segment.source is _INJECTED:
        if segment.versions and segment.logprobs is None:
            raise Fault("must not come without logprobs: on injected tokens they name the weights that scored them", ".versions")
    elif segment.logprobs is not None or segment.versions:
        raise Fault(
            f"must be absent on tokens that no model sampled (source {segment.source.value})", ".logprobs" if segment.logprobs is not None else ".versions"
        )


def _check_trace(trace: Trace) -> None:
    for index, segment in enumerate(trace.segments):
        if segment.parent is not None and segment.parent >= index:
            raise Fault(f"must be smaller than the segment's own index {index}, got {segment.parent}", f".segments[{index}].parent")
    num_segments = len(trace.segments)
    owners: dict[int, int] = {}
    for index, mark in enumerate(trace.marks):
        start, stop = mark.start, mark.stop
        if not 0 <= start <= stop <= num_segments:
            raise Fault(f"must lie inside {num_segments} segments, got {start} to {stop}", f".marks[{index}]")
        for inner in range(start, stop):
            if inner > start and trace.segments[inner].parent != inner - 1:
                raise Fault(f"must be a chain, but segment {inner} hangs on {trace.segments[inner].parent}", f".marks[{index}]")
            if owners.setdefault(inner, index) != index:
                raise Fault(f"must not hold segment {inner}, which marks[{owners[inner]}] holds already", f".marks[{index}]")


def _check_rollout(rollout: Rollout) -> None:
    if rollout.status.usable and rollout.reward is None:
        raise Fault(f"must be a number when the status is {rollout.status.value}, got none", ".reward")
    if not rollout.status.usable and rollout.reward is not None:
        raise Fault(f"must be absent when the status is {rollout.status.value}: a failure is never a reward, got {rollout.reward}", ".reward")


def _check_annotation(annotation: Annotation) -> None:
    for name, value in (("step", annotation.step), ("version", annotation.version)):
        if value is not None and value < 0:
            raise Fault(f"must be 0 or more, got {value}", f".{name}")
    if annotation.policy:
        try:
            require_id(annotation.policy)
        except Fault as fault:
            raise fault.at(".policy") from None


RULES: dict[type, Callable[[Any], None]] = {
    Annotation: _check_annotation,
    Rollout: _check_rollout,
    Segment: _check_segment,
    Trace: _check_trace,
    VersionRun: _check_version_run,
}
"""What must hold between the fields of a noun."""


def check_vocabulary(noun: object, size: int) -> None:
    """Raise `Fault` if a token of a trace, rollout, group or annotation is not below `size`."""
    for path, segment in _segments(noun):
        if segment.ids.size and int(segment.ids.max()) >= size:
            raise Fault(f"must be below the vocabulary's {size}, got {int(segment.ids.max())}", f"{path}.ids")


def _segments(noun: object) -> Iterable[tuple[str, Segment]]:
    if isinstance(noun, Group):
        for member, rollout in enumerate(noun.rollouts):
            yield from ((f".rollouts[{member}]{path}", segment) for path, segment in _segments(rollout))
        for place, annotation in enumerate(noun.annotations):
            yield from ((f".annotations[{place}]{path}", segment) for path, segment in _segments(annotation))
    elif isinstance(noun, Rollout):
        yield from ((f".trace{path}", segment) for path, segment in _segments(noun.trace))
    elif isinstance(noun, (Trace, Annotation)):
        yield from ((f".segments[{index}]", segment) for index, segment in enumerate(noun.segments))
    elif isinstance(noun, Segment):
        yield "", noun
    else:
        raise TypeError(f"a {type(noun).__name__} has no tokens to compare with a vocabulary")
