"""A conversation as a trace: every token that its points hold, recorded once, when nothing more is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.gateway.conversation import Conversation, Point
from penstock.trace import Recorder, Span, Tokens
from penstock.types import InferenceMetadata, Message, Source


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """A conversation in a recorder."""

    recorder: Recorder
    marks: dict[int, int]
    """Of each reply, by point: the number of its message in the trace."""


def recorded(conversation: Conversation) -> Recorded:
    """Record all points of a conversation, in their order. The same points give the same trace."""
    points = conversation.points
    recorder = Recorder()
    marks: dict[int, int] = {}
    # Most points go on from the one before. Where others branch off, they must find the place again.
    branched = {point.parent for point in points if point.parent != point.number - 1}
    places: dict[int, Span | None] = {}
    for point in points:
        if point.parent != point.number - 1:
            recorder.fork(None if point.parent is None else places[point.parent])
        if point.keep != (0 if point.parent is None else points[point.parent].num_tokens):
            recorder.rewind(point.keep)
        if point.choice is None:
            _record_prompt(recorder, point)
        else:
            marks[point.number] = _record_reply(recorder, point)
        if point.number in branched:
            places[point.number] = recorder.tip
    return Recorded(recorder=recorder, marks=marks)


def _record_reply(recorder: Recorder, point: Point) -> int:
    choice = point.choice
    assert choice is not None and point.sampler is not None
    # Looked at when the engine gave them, or when they came back from the journal.
    tokens = Tokens(ids=choice.ids, source=Source.SAMPLED, logprobs=choice.logprobs, versions=choice.versions)
    inference = InferenceMetadata(sampler=point.sampler, usage=choice.usage, finish_reason=choice.finish)
    return recorder.append_message(tokens, choice.message, inference=inference, timestamp=point.at)


def _record_prompt(recorder: Recorder, point: Point) -> None:
    """Append pieces; those that spell a new message are marked as it. A message without any is marked too."""
    new, num_marked = point.messages[point.shared :], 0
    for piece in point.pieces:
        # Their indices count through all messages.
        index = -1 if piece.message_index is None else piece.message_index - point.shared
        tokens = Tokens(ids=piece.ids, source=piece.source)
        if index < num_marked:
            recorder.append_checked(tokens)
            continue
        _mark_silent(recorder, new[num_marked:index], point.at)
        recorder.append_message(tokens, new[index], timestamp=point.at)
        num_marked = index + 1
    _mark_silent(recorder, new[num_marked:], point.at)


def _mark_silent(recorder: Recorder, messages: Sequence[Message], at: int) -> None:
    for message in messages:
        recorder.open_message()
        recorder.close_message(message, timestamp=at)
