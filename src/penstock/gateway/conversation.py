"""The conversation of a session, as a tree of points: what is known, what a request adds to it, and what came of that.

A *point* is a place behind some messages: a prompt that was answered, or a reply. A request whose messages are those of a reply and some more goes on
from it, by what is added. Anything else (an edited message, a dropped one, another system prompt) leaves what is known at the first difference. Pure:
no clock, no socket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.chat import ChatTemplate, Known, Piece
from penstock.errors import InvalidError
from penstock.gateway.events import Choice, PromptPiece, Replied
from penstock.gateway.requests import one_spelling
from penstock.trace import Recorder, Span, Tokens
from penstock.types import InferenceMetadata, Int32Array, Json, Message, Source
from penstock.types.frozen import quickly_made
from penstock.wire import canonical_json, digest

_NO_TOOLS = digest(canonical_json([]))


@dataclass(slots=True, kw_only=True, eq=False)
class Point:
    """A place in the conversation."""

    number: int
    parent: int | None
    keep: int
    """Tokens of the parent's path that this one's begins with."""
    pieces: tuple[Known, ...]
    """Tokens that come after them."""
    num_tokens: int
    messages: tuple[Message, ...]
    """All up to here, in one spelling."""
    digests: tuple[str, ...]
    """Of the tools, of them and the first message, and so on."""
    tip: Span | None
    """Where the recorder goes on from here."""
    choice: Choice | None = None
    """What was sampled; None for a prompt."""
    mark: int = -1
    """Number of the reply's message in the trace."""
    attempt: int = 0
    """Which answer to its prompt the reply belongs to, and which choice it is."""
    index: int = 0
    is_gone: bool = False
    is_continued: bool = False
    """Somebody went on from here."""
    children: list[int] = field(default_factory=list)
    """Of a prompt: its replies, in order."""
    num_attempts: int = 0


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """What a request adds: the first half of a `Replied`, and all ids to continue."""

    tools: str
    parent: int | None
    shared: int
    keep: int
    messages: tuple[Message, ...]
    pieces: tuple[PromptPiece, ...]
    ids: Int32Array
    is_fork: bool
    """It leaves tokens behind that were known."""


@dataclass(frozen=True, slots=True, eq=False)
class _Ids:
    ids: Int32Array


class Conversation:
    """Belongs to one session. `prompt` says what a request adds and changes nothing; `apply` adds what was answered."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.recorder = Recorder()
        self.points: list[Point] = []
        self.num_tokens = 0
        """Of all branches together."""
        self._replies: dict[str, list[int]] = {}
        self._prompts: dict[str, int] = {}
        self._prefixes: dict[str, int] = {}
        """A point that begins with these messages."""

    def prompts(self) -> Iterator[Point]:
        """Prompts that were answered, in order."""
        return (point for point in self.points if point.choice is None)

    def prompt(self, messages: tuple[Message, ...], tools: Sequence[Json] = ()) -> Prompt:
        """What these messages add. Raises `InvalidError` for a conversation that the template refuses."""
        root = digest(canonical_json(list(tools))) if tools else _NO_TOOLS
        digests = self._chain(root, messages)
        known = self._prompts.get(digests[-1])
        if known is not None:
            return self._plan(root, known, len(messages), self.points[known].num_tokens, messages, (), is_fork=False)
        reply = self._longest_reply(digests[:-1])
        if reply is not None:
            num_old = len(reply.messages)
            old, new = messages[num_old - 1], messages[num_old:]
            if self._template.extends(new, old):
                assert reply.choice is not None
                pieces = self._template.delta(int(reply.choice.ids[-1]), new, list(tools) or None, reply=old).pieces
                added = tuple(_piece(piece, num_old) for piece in pieces)
                return self._plan(root, reply.number, num_old, reply.num_tokens, messages, added, is_fork=False)
        return self._forked(root, digests, messages, tools)

    def apply(self, event: Replied, at: int) -> list[Point]:
        """Record an answer, and give the points of its choices."""
        prompt = self._prompt_point(event, at)
        prompt.num_attempts += 1
        return [self._reply_point(prompt, choice, index, event, at) for index, choice in enumerate(event.choices)]

    def _plan(
        self, root: str, parent: int | None, shared: int, keep: int, messages: tuple[Message, ...], pieces: tuple[PromptPiece, ...], *, is_fork: bool
    ) -> Prompt:
        self.recorder.fork(None if parent is None else self.points[parent].tip)
        self.recorder.rewind(keep)
        ids = np.concatenate([self.recorder.ids(), *(piece.ids for piece in pieces)])
        return Prompt(tools=root, parent=parent, shared=shared, keep=keep, messages=messages[shared:], pieces=pieces, ids=ids, is_fork=is_fork)

    def _chain(self, root: str, messages: tuple[Message, ...]) -> tuple[str, ...]:
        """Digests of the beginnings of a conversation. Most go on from the newest point: then only what is new is looked at."""
        newest = self.points[-1] if self.points else None
        if newest is not None and newest.digests[0] == root and messages[: len(newest.messages)] == newest.messages:
            return _linked(newest.digests, messages[len(newest.messages) :])
        return _linked((root,), messages)

    def _forked(self, root: str, digests: tuple[str, ...], messages: tuple[Message, ...], tools: Sequence[Json]) -> Prompt:
        """Render all of it and leave the nearest known point where it differs."""
        if not self.points:
            pieces = self._template.open(messages, list(tools) or None).pieces
            return self._plan(root, None, 0, 0, messages, tuple(_piece(piece) for piece in pieces), is_fork=False)
        shared = next((index for index in range(len(messages), 0, -1) if digests[index] in self._prefixes), 0)
        # Nothing in common but perhaps the first tokens: those of the newest point are as good as any.
        base = self.points[self._prefixes[digests[shared]] if shared else -1]
        fork = None
        if shared:
            # What was sampled is shown as it was sampled, wherever the template takes it so.
            try:
                fork = self._template.refork(self._as_sampled(digests, messages), self._known(base), list(tools) or None)
            except InvalidError:
                fork = None
        if fork is None:
            fork = self._template.refork(messages, self._known(base), list(tools) or None)
        return self._plan(root, base.number, shared, fork.keep, messages, tuple(_piece(piece) for piece in fork.pieces), is_fork=True)

    def _as_sampled(self, digests: tuple[str, ...], messages: tuple[Message, ...]) -> list[Message]:
        shown = list(messages)
        for index in range(len(messages)):
            numbers = self._replies.get(digests[index + 1])
            if numbers is not None:
                choice = self.points[numbers[0]].choice
                assert choice is not None
                shown[index] = Message(role="assistant", content=choice.text)
        return shown

    def _longest_reply(self, digests: Sequence[str]) -> Point | None:
        """The reply that the longest beginning of a conversation ends with."""
        for one in reversed(digests):
            numbers = self._replies.get(one)
            if numbers is not None:
                return self._likeliest(numbers)
        return None

    def _likeliest(self, numbers: Sequence[int]) -> Point:
        """Of replies that say the same to the same: the one that was continued, else the newest that its client got."""
        return max((self.points[number] for number in numbers), key=lambda point: (point.is_continued, not point.is_gone, point.attempt, -point.index))

    def _known(self, point: Point) -> list[Known]:
        """The tokens on the path to a point, piece by piece."""
        pieces: list[list[Known]] = []
        keep = point.num_tokens
        place: Point | None = point
        while place is not None:
            inherited = place.keep
            pieces.append(_first(place.pieces, keep - inherited))
            keep = min(keep, inherited)
            place = None if place.parent is None else self.points[place.parent]
        return [piece for part in reversed(pieces) for piece in part]

    def _prompt_point(self, event: Replied, at: int) -> Point:
        base = None if event.parent is None else self.points[event.parent]
        if base is not None and base.choice is None and not event.messages:
            return base
        before = () if base is None else base.messages[: event.shared]
        messages = before + event.messages
        digests = _linked((event.tools,) if base is None or not event.shared else base.digests[: event.shared + 1], event.messages)
        known = self._prompts.get(digests[-1])
        if known is not None:  # two at once asked the same
            return self.points[known]
        # Replies before those that are shared with another point were gone on from when that one was made.
        for one in digests[max(1, event.shared) : -1]:
            numbers = self._replies.get(one)
            if numbers is not None:
                self._likeliest(numbers).is_continued = True
        self.recorder.fork(None if base is None else base.tip)
        self.recorder.rewind(event.keep)
        self._record(event.pieces, messages[event.shared :], event.shared, at)
        point = self._add(base, event.keep, event.pieces, messages, digests)
        self._prompts[digests[-1]] = point.number
        for one in digests[event.shared + 1 :]:
            self._prefixes.setdefault(one, point.number)
        return point

    def _reply_point(self, prompt: Point, choice: Choice, index: int, event: Replied, at: int) -> Point:
        self.recorder.fork(prompt.tip)
        self.recorder.open_message()
        self.recorder.append(choice.ids, Source.SAMPLED, logprobs=choice.logprobs, versions=choice.versions)
        inference = InferenceMetadata(sampler=event.sampler, usage=choice.usage, finish_reason=choice.finish)
        mark = self.recorder.close_message(choice.message, inference=inference, timestamp=at)
        told = one_spelling(choice.message)
        point = self._add(prompt, prompt.num_tokens, (_Ids(choice.ids),), (*prompt.messages, told), _linked(prompt.digests, [told]))
        point.choice, point.mark, point.attempt, point.index, point.is_gone = choice, mark, prompt.num_attempts, index, event.gone
        prompt.children.append(point.number)
        self._replies.setdefault(point.digests[-1], []).append(point.number)
        self._prefixes.setdefault(point.digests[-1], point.number)
        return point

    def _add(self, base: Point | None, keep: int, pieces: Sequence[Known], messages: tuple[Message, ...], digests: tuple[str, ...]) -> Point:
        added = sum(len(piece.ids) for piece in pieces)
        self.num_tokens += added
        point = Point(
            number=len(self.points),
            parent=None if base is None else base.number,
            keep=keep,
            pieces=tuple(pieces),
            num_tokens=keep + added,
            messages=messages,
            digests=digests,
            tip=self.recorder.tip,
        )
        self.points.append(point)
        return point

    def _record(self, pieces: Sequence[PromptPiece], new: Sequence[Message], first: int, at: int) -> None:
        """Append pieces; those that spell a new message (their indices count from `first`) are marked as it. A message without any is marked too."""
        num_marked = 0
        for piece in pieces:
            index = -1 if piece.message_index is None else piece.message_index - first
            if index < num_marked:
                self.recorder.append_checked(_tokens(piece))
                continue
            self._mark_silent(new[num_marked:index], at)
            self.recorder.open_message()
            self.recorder.append_checked(_tokens(piece))
            self.recorder.close_message(new[index], timestamp=at)
            num_marked = index + 1
        self._mark_silent(new[num_marked:], at)

    def _mark_silent(self, messages: Sequence[Message], at: int) -> None:
        for message in messages:
            self.recorder.open_message()
            self.recorder.close_message(message, timestamp=at)


def _linked(before: tuple[str, ...], messages: Sequence[Message]) -> tuple[str, ...]:
    """The digests with one more for each message."""
    digests = list(before)
    for message in messages:
        digests.append(_link(digests[-1], message))
    return tuple(digests)


def _link(before: str, message: Message) -> str:
    calls = canonical_json(list(message.tool_calls)) if message.tool_calls else b""
    parts = (before, message.role, message.content, message.tool_call_id or "", message.name or "")
    return digest(b"\0".join([*(part.encode("utf-8", "surrogatepass") for part in parts), calls]))


def _piece(piece: Piece, offset: int = 0) -> PromptPiece:
    """A rendered piece, with messages counted from `offset`."""
    index = piece.message_index
    return PromptPiece(ids=piece.ids, source=piece.source, message_index=None if index is None else index + offset)


def _tokens(piece: PromptPiece) -> Tokens:
    """A piece as it is recorded. Its ids are the template's, at first hand or from the journal: they are not looked at again, and nobody may write there."""
    piece.ids.flags.writeable = False
    return Tokens(ids=piece.ids, source=piece.source, logprobs=None, versions=(), arrays={}, media=())


def _first(pieces: Sequence[Known], num_tokens: int) -> list[Known]:
    """The first tokens of some pieces."""
    kept: list[Known] = []
    for piece in pieces:
        if num_tokens > 0:
            kept.append(piece if len(piece.ids) <= num_tokens else _Ids(piece.ids[:num_tokens]))
            num_tokens -= len(kept[-1].ids)
    return kept
