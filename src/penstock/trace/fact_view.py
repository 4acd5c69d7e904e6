"""What the ledger needs to know about a rollout's tokens. Called by the buffer when a rollout is admitted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import takewhile

import xxhash

from penstock.trace.paths import kept_paths
from penstock.types import Rollout, Segment, Source, Trace, kept_segments


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
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
    segments = [segment for segment, kept in zip(rollout.trace.segments, kept_segments(rollout.trace), strict=True) if kept]
    ours = [run for segment in segments if segment.source is Source.SAMPLED for run in segment.versions if run.policy == policy]
    by_version: Counter[int] = Counter()
    for run in ours:
        by_version[run.version] += run.count
    prefix_tokens, prefix_digest = _prefix(rollout.trace, policy)
    return RolloutFacts(
        tokens=sum(len(segment.ids) for segment in segments),
        sampled_tokens=by_version.total(),
        prefix_tokens=prefix_tokens,
        prefix_digest=prefix_digest,
        versions=tuple(sorted(by_version)),
        version_tokens=tuple(by_version[version] for version in sorted(by_version)),
    )


def _prefix(trace: Trace, policy: str) -> tuple[int, str]:
    """Length and digest of what `prefix_tree` may share with other rollouts."""
    digest = xxhash.xxh3_128()
    num_tokens = 0
    for index in next(iter(kept_paths(trace)), ()):
        segment = trace.segments[index]
        length = _shareable_length(segment, policy)
        digest.update(segment.ids[:length].astype("<i4", copy=False).tobytes())
        num_tokens += length
        if length < len(segment.ids):
            break
    return num_tokens, digest.hexdigest()


def _shareable_length(segment: Segment, policy: str) -> int:
    """Tokens of a segment before the first that `policy` sampled; none if it has media."""
    if segment.media:
        return 0
    if segment.source is not Source.SAMPLED:
        return len(segment.ids)
    return sum(run.count for run in takewhile(lambda run: run.policy != policy, segment.versions))
