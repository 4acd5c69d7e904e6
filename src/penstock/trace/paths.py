"""Paths through a trace: which leaves the kept segments lead to, which messages stand on the way. Used by the views."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.types import Mark, Trace, kept_segments


def kept_paths(trace: Trace) -> list[tuple[int, ...]]:
    """The paths from a root to each kept leaf (a kept segment that no kept one continues), in the order the leaves were recorded."""
    kept = kept_segments(trace)
    continued = {segment.parent for segment, is_kept in zip(trace.segments, kept, strict=True) if is_kept}
    return [_path_to(trace, leaf) for leaf, is_kept in enumerate(kept) if is_kept and leaf not in continued]


def _path_to(trace: Trace, leaf: int) -> tuple[int, ...]:
    path = []
    index: int | None = leaf
    while index is not None:
        path.append(index)
        index = trace.segments[index].parent
    return tuple(reversed(path))


def is_kept(mark: Mark, kept: list[bool]) -> bool:
    """Whether a message stands on a kept branch to its end. A message without tokens does."""
    return mark.stop == mark.start or kept[mark.stop - 1]


def step_marks(trace: Trace) -> list[int]:
    """Numbers of the assistant's messages on kept branches, in the order of recording: one for each step of the agent."""
    kept = kept_segments(trace)
    return [number for number, mark in enumerate(trace.marks) if mark.message.role == "assistant" and is_kept(mark, kept)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """How the messages of a trace follow each other."""

    previous: tuple[int | None, ...]
    """For each mark, the mark of the message before it on its path; None for a first message."""

    def before(self, mark: int) -> list[int]:
        """The marks on the path to a message, without itself, oldest first."""
        path = []
        previous = self.previous[mark]
        while previous is not None:
            path.append(previous)
            previous = self.previous[previous]
        return path[::-1]


def conversation(trace: Trace) -> Conversation:
    """Read off the segments which message continues which.

    A path that leaves a message before its end (a fork inside it) does not hold that message. A message without tokens continues the one recorded before it,
    and is continued by the one recorded after it, if that goes on from the same place.
    """
    mark_of = {segment: number for number, mark in enumerate(trace.marks) for segment in range(mark.start, mark.stop)}
    previous: list[int | None] = [None] * len(trace.marks)
    last_at: list[int | None] = []  # the last message that is complete at the end of each segment
    for index, segment in enumerate(trace.segments):
        inherited = None if segment.parent is None else last_at[segment.parent]
        number = mark_of.get(index)
        if number is None:
            last_at.append(inherited)
            continue
        mark = trace.marks[number]
        if index == mark.start:
            previous[number] = inherited
        last_at.append(number if index == mark.stop - 1 else previous[number])
    with_tokens: int | None = None  # the last message before `number` that has tokens
    for number, mark in enumerate(trace.marks):
        is_silent = mark.start == mark.stop
        follows_silent = number > 0 and trace.marks[number - 1].start == trace.marks[number - 1].stop
        if number > 0 and (is_silent or (follows_silent and previous[number] == with_tokens)):
            previous[number] = number - 1
        with_tokens = with_tokens if is_silent else number
    return Conversation(previous=tuple(previous))
