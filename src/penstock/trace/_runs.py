"""A run of tokens as the recorder holds it: grows at its end, and remembers where it must be cut into segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.trace.checks import read_only, same_layout
from penstock.types import Float32Array, Int32Array, Segment, Source, VersionRun
from penstock.types.frozen import quickly_made

Place = tuple[int, int]
"""(run, offset): after so many tokens of that run, 1 or more."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Checked tokens of one append, with all that is known about each. The arrays are the recorder's own and read-only."""

    ids: Int32Array
    source: Source
    logprobs: Float32Array | None = None
    versions: tuple[VersionRun, ...] = ()
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    media: tuple[str, ...] = ()

    def continues(self, other: Tokens) -> bool:
        """Whether the two may stand in one segment. Media keep to themselves, because a segment does not say which tokens they stand behind."""
        return (
            self.source is other.source
            and (self.logprobs is None) == (other.logprobs is None)
            and bool(self.versions) == bool(other.versions)
            and not self.media
            and not other.media
            and same_layout(self.arrays, other.arrays)
        )


@quickly_made
@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """One or more appends in a row that may stand in one segment."""

    parent: Place | None
    depth: int
    """Tokens before it on its path."""
    chunks: list[Tokens]
    length: int
    cuts: set[int] = field(default_factory=set)
    """Offsets inside the run where a segment ends, because something else hangs there or a branch was abandoned from there."""
    abandoned: dict[int, str] = field(default_factory=dict)
    """Offset from which on the run was abandoned, and why."""

    def may_grow(self, offset: int, tokens: Tokens) -> bool:
        """Whether tokens after the first `offset` of the run may be a part of it."""
        return offset == self.length and tokens.continues(self.chunks[-1])

    def grow(self, tokens: Tokens) -> None:
        """Add tokens at the end. Chunks are joined only when somebody looks, so that a reply may come token by token."""
        self.chunks.append(tokens)
        self.length += len(tokens.ids)

    def joined(self) -> Tokens:
        """All tokens of the run in one piece."""
        if len(self.chunks) > 1:
            self.chunks = [_joined(self.chunks)]
        return self.chunks[0]

    def segment(self, parent: int | None) -> Segment:
        """The run as one segment; it must not be cut."""
        tokens = self.chunks[0] if len(self.chunks) == 1 else self.joined()
        return Segment(
            parent=parent,
            ids=tokens.ids,
            source=tokens.source,
            logprobs=tokens.logprobs,
            versions=tokens.versions,
            arrays=dict(tokens.arrays),
            media=tokens.media,
            abandoned=self.abandoned.get(0) if self.abandoned else None,
        )

    def segments(self, parent: int | None, first_index: int) -> Iterator[tuple[int, Segment]]:
        """(offset of its end, segment) for each segment of the run, the first of which gets number `first_index` and hangs on `parent`."""
        tokens = self.joined()
        start = 0
        for stop in (*sorted(self.cuts), self.length):
            whole = stop - start == self.length
            yield (
                stop,
                Segment(
                    parent=parent,
                    ids=tokens.ids[start:stop],
                    source=tokens.source,
                    logprobs=None if tokens.logprobs is None else tokens.logprobs[start:stop],
                    versions=tokens.versions if whole else versions_between(tokens.versions, start, stop),
                    arrays={name: array[start:stop] for name, array in tokens.arrays.items()},
                    media=tokens.media,
                    abandoned=self.abandoned.get(start),
                ),
            )
            parent, first_index, start = first_index, first_index + 1, stop


def versions_between(versions: Sequence[VersionRun], start: int, stop: int) -> tuple[VersionRun, ...]:
    """The runs of the tokens `start` to `stop`.

    >>> [run.count for run in versions_between([VersionRun(policy="p", version=v, count=3) for v in (1, 2)], 2, 5)]
    [1, 2]
    """
    between = []
    offset = 0
    for run in versions:
        count = min(stop, offset + run.count) - max(start, offset)
        if count > 0:
            between.append(replace(run, count=count))
        offset += run.count
    return tuple(between)


def _joined(chunks: Sequence[Tokens]) -> Tokens:
    first = chunks[0]
    return Tokens(
        ids=read_only(np.concatenate([chunk.ids for chunk in chunks])),
        source=first.source,
        logprobs=None if first.logprobs is None else read_only(np.concatenate([chunk.logprobs for chunk in chunks if chunk.logprobs is not None])),
        versions=_merged_versions([run for chunk in chunks for run in chunk.versions]),
        arrays={name: read_only(np.concatenate([chunk.arrays[name] for chunk in chunks])) for name in first.arrays},
        media=first.media,
    )


def _merged_versions(versions: Sequence[VersionRun]) -> tuple[VersionRun, ...]:
    """Neighbours that differ in nothing but their count become one."""
    merged: list[VersionRun] = []
    for run in versions:
        if merged and replace(merged[-1], count=run.count) == run:
            merged[-1] = replace(run, count=merged[-1].count + run.count)
        else:
            merged.append(run)
    return tuple(merged)
