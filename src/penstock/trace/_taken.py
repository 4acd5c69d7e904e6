"""Tokens as a recorder takes them: checked, and its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy.typing as npt

from penstock.errors import InvalidError
from penstock.trace._runs import Tokens, read_only
from penstock.trace.checks import as_arrays, as_ids, as_logprobs
from penstock.types import Segment, Source, VersionRun
from penstock.wire import check_noun


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
    own_ids = read_only(as_ids(ids))
    if logprobs is None and not versions and not arrays and not media and source in (Source.TEMPLATE, Source.ENV) and own_ids.ndim == 1 and own_ids.size:
        # Nothing is left that could be wrong with them, and most of what is recorded is this.
        return Tokens(ids=own_ids, source=Source(source), logprobs=None, versions=(), arrays={}, media=())
    if logprobs is not None and versions and not arrays and not media and source is Source.SAMPLED and all(map(_is_right, versions)):
        own_logprobs = read_only(as_logprobs(logprobs))
        if own_ids.ndim == own_logprobs.ndim == 1 and 0 < own_ids.size == own_logprobs.size == sum(run.count for run in versions):
            # The arrays were looked at when they were made, and few different runs of versions come again and again.
            return Tokens(ids=own_ids, source=source, logprobs=own_logprobs, versions=tuple(versions), arrays={}, media=())
    segment = Segment(
        parent=None,
        ids=own_ids,
        source=source,
        logprobs=None if logprobs is None else read_only(as_logprobs(logprobs)),
        versions=tuple(versions),
        arrays={name: read_only(array) for name, array in as_arrays(arrays or {}).items()},
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


def _is_right(run: VersionRun) -> bool:
    """Whether nothing is wrong with a run. Its types first: to Python, and to a cache, True is 1."""
    is_typed = type(run) is VersionRun and type(run.count) is type(run.version) is int and type(run.policy) is str and type(run.mixed_kv) is bool
    return is_typed and _is_right_by_value(run)


@lru_cache(maxsize=4096)
def _is_right_by_value(run: VersionRun) -> bool:
    try:
        check_noun(run)
    except InvalidError:
        return False
    return True
