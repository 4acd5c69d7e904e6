"""What the ledger needs to know about a rollout's tokens. Called by the buffer when a rollout is admitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from penstock.trace.paths import kept_paths
from penstock.types import Rollout, Segment, Source, Trace, kept_segments

# Asked for with every segment, and an enum takes its time to name a member.
_SAMPLED = Source.SAMPLED
_INT32 = np.dtype("<i4")


class RolloutFacts(NamedTuple):
    """Counts and versions of the kept branches. Field names as in `RolloutRecord`."""

    tokens: int
    """Tokens of the kept paths, each segment once."""
    sampled_tokens: int
    """Those among them that our policy sampled."""
    prefix_tokens: int
    """Tokens of the first kept path before the first one that our policy sampled or that stands with media; the whole path if there is none."""
    prefix_digest: str
    """xxh3-128 in hex over their ids as little-endian int32."""
    versions: tuple[int, ...]
    """Distinct versions of our policy's sampled tokens, ascending."""
    version_tokens: tuple[int, ...]
    """Sampled tokens of each of them."""

    @property
    def oldest_version(self) -> int | None:
        """None if our policy sampled nothing."""
        return self.versions[0] if self.versions else None

    @property
    def newest_version(self) -> int | None:
        """None if our policy sampled nothing."""
        return self.versions[-1] if self.versions else None


def facts(rollout: Rollout, *, policy: str = "policy") -> RolloutFacts:
    """Count the kept branches of a rollout. Abandoned ones and the versions of other policies do not show in it."""
    segments = rollout.trace.segments
    kept, path = (segments, range(len(segments))) if _is_one_path(segments) else _kept(rollout.trace)
    by_version: dict[int, int] = {}
    tokens = 0
    for segment in kept:
        tokens += len(segment.ids)
        if segment.source is _SAMPLED:
            for run in segment.versions:
                if run.policy == policy:
                    by_version[run.version] = by_version.get(run.version, 0) + run.count
    # Nearly always there is one.
    versions = tuple(by_version) if len(by_version) < 2 else tuple(sorted(by_version))
    counts = tuple([by_version[version] for version in versions])
    prefix_tokens, prefix_digest = _prefix(segments, path, policy)
    return RolloutFacts(tokens, sum(counts), prefix_tokens, prefix_digest, versions, counts)


def _is_one_path(segments: Sequence[Segment]) -> bool:
    """Whether all is kept and nothing ever forked, as in most traces: then there are no branches to look for."""
    previous = None
    for index, segment in enumerate(segments):
        if segment.parent != previous or segment.abandoned is not None:
            return False
        previous = index
    return True


def _kept(trace: Trace) -> tuple[Sequence[Segment], Sequence[int]]:
    """The kept segments, and the numbers of those on the first kept path."""
    segments = [segment for segment, kept in zip(trace.segments, kept_segments(trace), strict=True) if kept]
    return segments, next(iter(kept_paths(trace)), ())


def _prefix(segments: Sequence[Segment], path: Iterable[int], policy: str) -> tuple[int, str]:
    """Length and digest of what `prefix_tree` may share with other rollouts."""
    shared: list[bytes] = []
    num_tokens = 0
    for index in path:
        segment = segments[index]
        ids = segment.ids
        length = num_ids = len(ids)
        if segment.media or segment.source is _SAMPLED:
            length = _shareable_length(segment, policy)
        if length:
            shared.append((ids if length == num_ids else ids[:length]).astype(_INT32, copy=False).tobytes())
            num_tokens += length
        if length < num_ids:
            break
    return num_tokens, xxhash.xxh3_128_hexdigest(shared[0] if len(shared) == 1 else b"".join(shared))


def _shareable_length(segment: Segment, policy: str) -> int:
    """Tokens of a sampled segment, or of one with media, before the first that `policy` sampled; none if it has media."""
    if segment.media:
        return 0
    length = 0
    for run in segment.versions:
        if run.policy == policy:
            break
        length += run.count
    return length
