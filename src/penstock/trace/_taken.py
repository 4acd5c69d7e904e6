"""Tokens as a recorder takes them: checked, and its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy.typing as npt

from penstock.errors import InvalidError
from penstock.trace._runs import Tokens
from penstock.trace.checks import as_arrays, as_ids, as_logprobs
from penstock.types import Evidence, Segment, Source, VersionRun
from penstock.wire import check_id, check_noun


def checked_tokens(
    ids: npt.ArrayLike,
    source: Source,
    *,
    logprobs: npt.ArrayLike | None = None,
    versions: Sequence[VersionRun] = (),
    arrays: Mapping[str, npt.ArrayLike] | None = None,
    media: Sequence[str] = (),
) -> Tokens:
    """What `Recorder.append` is given, once checked: for whoever appends the same again and again, with `Recorder.append_checked`.

    Raises `InvalidError` for what could not be sent.
    """
    own_ids = as_ids(ids)
    if not arrays and not media and own_ids.ndim == 1 and own_ids.size:
        # With most of what is recorded nothing else can be wrong: the arrays were looked at when they were made.
        if logprobs is None and not versions and source in (Source.TEMPLATE, Source.ENV):
            return Tokens(ids=own_ids, source=Source(source), logprobs=None, versions=(), arrays={}, media=())
        if logprobs is not None and source is Source.SAMPLED and _count(versions) == own_ids.size:
            own_logprobs = as_logprobs(logprobs)
            if own_logprobs.ndim == 1 and own_logprobs.size == own_ids.size:
                return Tokens(ids=own_ids, source=source, logprobs=own_logprobs, versions=tuple(versions), arrays={}, media=())
    segment = Segment(
        parent=None,
        ids=own_ids,
        source=source,
        logprobs=None if logprobs is None else as_logprobs(logprobs),
        versions=tuple(versions),
        arrays=as_arrays(arrays or {}),
        media=tuple(media),
    )
    check_noun(segment)
    return tokens_of(segment)


def tokens_of(segment: Segment) -> Tokens:
    """The tokens of a segment that was checked."""
    return Tokens(
        ids=segment.ids,
        source=segment.source,
        logprobs=segment.logprobs,
        versions=segment.versions,
        arrays=dict(segment.arrays),
        media=segment.media,
    )


def _count(versions: Sequence[VersionRun]) -> int:
    """How many tokens the runs are of; 0 if a look at one of them finds anything that might be wrong."""
    count = 0
    for run in versions:
        # Types first: to Python, True is 1.
        is_typed = type(run) is VersionRun and type(run.count) is type(run.version) is int and type(run.mixed_kv) is bool and type(run.evidence) is Evidence
        if not is_typed or run.count < 1 or not 0 <= run.version < 2**63 or type(run.policy) is not str or not _is_id(run.policy):
            return 0
        count += run.count
    return count


@lru_cache(maxsize=1024)
def _is_id(text: str) -> bool:
    try:
        check_id(text, "policy")
    except InvalidError:
        return False
    return True
