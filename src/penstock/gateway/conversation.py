"""The conversation of a session, as a tree of points: what is known, what a request adds to it, and what came of that.

A *point* is a place behind some messages: a prompt that was answered, or a reply. A request whose messages are those of a reply and some more goes on
from it, by what is added. Anything else (an edited message, a dropped one, another system prompt) leaves what is known at the first difference. What a
trace has of it is made when the session has ended (see `recording`). Pure: no clock, no socket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.chat import ChatTemplate, Known, Piece, shifted
from penstock.errors import InvalidError
from penstock.gateway.events import Choice, Replied
from penstock.gateway.requests import one_spelling
from penstock.types import Int32Array, Json, Message, SamplerFacts
from penstock.types.frozen import quickly_made
from penstock.wire import canonical_json, digest

_NO_TOOLS = digest(canonical_json([]))


@quickly_made
@dataclass(slots=True, kw_only=True, eq=False)
class Point:
    """A place in the conversation."""

    number: int
    parent: int | None
    shared: int
    """Messages that it has in common with the parent."""
    keep: int
    """Tokens of the parent's path that this one's begins with."""
    pieces: tuple[Piece, ...]
    """Tokens of a prompt that come after them; those of a reply are its choice's."""
    num_tokens: int
    messages: tuple[Message, ...]
    """All up to here, in one spelling."""
    digests: tuple[str, ...]
    """Of the tools, of them and the first message, and so on."""
    at: int
    """When it was answered, in milliseconds since 1970."""
    choice: Choice | None = None
    """What was sampled; None for a prompt."""
    sampler: SamplerFacts | None = None
    """How; None for a prompt."""
    attempt: int = 0
    """Which answer to its prompt the reply belongs to, and which choice it is."""
    index: int = 0
    is_gone: bool = False
    is_continued: bool = False
    """Somebody went on from here."""
    children: list[int] = field(default_factory=list)
    """Of a prompt: its replies, in order."""
    num_attempts: int = 0

    def known(self) -> tuple[Known, ...]:
        """The tokens that it adds."""
        return self.pieces if self.choice is None else (self.choice,)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """What a request adds: the first half of a `Replied`, and all ids to continue."""

    tools: str
    parent: int | None
    shared: int
    keep: int
    messages: tuple[Message, ...]
    pieces: tuple[Piece, ...]
    ids: Int32Array
    parts: list[Int32Array]
    """That the ids were put together of: mostly those of the prompt before, of the reply to it, and of the pieces."""
    digests: tuple[str, ...]
    """Of the conversation; see `Point`."""


class Conversation:
    """Belongs to one session. `prompt` says what a request adds and changes nothing; `apply` adds what was answered."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.points: list[Point] = []
        self.num_tokens = 0
        """Of all branches together."""
        self._replies: dict[str, list[int]] = {}
        self._prompts: dict[str, int] = {}
        self._prefixes: dict[str, int] = {}
        """A point that begins with these messages."""
        self._planned: Prompt | None = None
        """The newest that was asked for: as a rule it is the one that is answered next, and then gone on from."""
        self._path: tuple[int, list[Int32Array]] = (-1, [])
        """A point, and the tokens on the path to it."""

    def prompts(self) -> Iterator[Point]:
        """Prompts that were answered, in order."""
        return (point for point in self.points if point.choice is None)

    def prompt(self, messages: tuple[Message, ...], tools: Sequence[Json] = ()) -> Prompt:
        """What these messages add. Raises `InvalidError` for a conversation that the template refuses."""
        digests = self._chain(digest(canonical_json(list(tools))) if tools else _NO_TOOLS, messages)
        known = self._prompts.get(digests[-1])
        if known is not None:
            self._planned = self._plan(digests, known, len(messages), self.points[known].num_tokens, messages, ())
        else:
            self._planned = self._extended(digests, messages, tools) or self._forked(digests, messages, tools)
        return self._planned

    def apply(self, event: Replied, at: int) -> list[Point]:
        """Add an answer, and give the points of its choices."""
        planned = self._planned
        # By identity, where that tells: what is made of one prompt is made of its parts.
        if planned is not None and not (
            planned.messages is event.messages
            and planned.pieces is event.pieces
            and (planned.tools, planned.parent, planned.keep) == (event.tools, event.parent, event.keep)
        ):
            planned = None
        prompt = self._prompt_point(event, at, planned)
        prompt.num_attempts += 1
        points = [self._reply_point(prompt, choice, index, event, at) for index, choice in enumerate(event.choices)]
        # Not where the same was asked twice at once: then the replies hang on the prompt that came first.
        if planned is not None and points and (prompt.pieces is planned.pieces or prompt.number == planned.parent):
            self._path = points[0].number, [planned.ids, event.choices[0].ids]
        return points

    def _plan(self, digests: tuple[str, ...], parent: int | None, shared: int, keep: int, messages: tuple[Message, ...], pieces: tuple[Piece, ...]) -> Prompt:
        parts = [*([] if parent is None else self._kept(self.points[parent], keep)), *[piece.ids for piece in pieces]]
        ids = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        return Prompt(
            tools=digests[0], parent=parent, shared=shared, keep=keep, messages=messages[shared:], pieces=pieces, ids=ids, parts=parts, digests=digests
        )

    def _kept(self, point: Point, keep: int) -> list[Int32Array]:
        """The first `keep` tokens on the path to a point."""
        number, parts = self._path
        if number != point.number:
            parts = [one.ids for one in self._known(point)]
        return parts if keep == point.num_tokens else [np.concatenate(parts)[:keep]]

    def _chain(self, root: str, messages: tuple[Message, ...]) -> tuple[str, ...]:
        """Digests of the beginnings of a conversation. Most go on from the newest point: then only what is new is looked at."""
        newest = self.points[-1] if self.points else None
        if newest is not None and newest.digests[0] == root and messages[: len(newest.messages)] == newest.messages:
            return _linked(newest.digests, messages[len(newest.messages) :])
        return _linked((root,), messages)

    def _extended(self, digests: tuple[str, ...], messages: tuple[Message, ...], tools: Sequence[Json]) -> Prompt | None:
        """What is added to the reply that the longest beginning of the messages ends with; None if there is none, or the template rewrites it."""
        reply = self._longest_reply(digests)
        if reply is None or reply.choice is None:
            return None
        num_old = len(reply.messages)
        old, new = messages[num_old - 1], messages[num_old:]
        if not self._template.extends(new, old):
            return None
        pieces = self._template.delta(int(reply.choice.ids[-1]), new, list(tools) or None, reply=old).pieces
        return self._plan(digests, reply.number, num_old, reply.num_tokens, messages, shifted(pieces, num_old))

    def _forked(self, digests: tuple[str, ...], messages: tuple[Message, ...], tools: Sequence[Json]) -> Prompt:
        """Render all of it and leave the nearest known point where it differs."""
        if not self.points:
            pieces = self._template.open(messages, list(tools) or None).pieces
            return self._plan(digests, None, 0, 0, messages, pieces)
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
        return self._plan(digests, base.number, shared, fork.keep, messages, fork.pieces)

    def _as_sampled(self, digests: tuple[str, ...], messages: tuple[Message, ...]) -> list[Message]:
        shown = list(messages)
        for index in range(len(messages)):
            numbers = self._replies.get(digests[index + 1])
            if numbers is not None:
                choice = self.points[numbers[0]].choice
                assert choice is not None
                shown[index] = Message(role="assistant", content=choice.text)
        return shown

    def _longest_reply(self, digests: tuple[str, ...]) -> Point | None:
        """The reply that the longest beginning of a conversation ends with, short of all of it."""
        for index in range(len(digests) - 2, 0, -1):
            numbers = self._replies.get(digests[index])
            if numbers is not None:
                return self._likeliest(numbers)
        return None

    def _likeliest(self, numbers: Sequence[int]) -> Point:
        """Of replies that say the same to the same: the one that was continued, else the newest that its client got."""
        if len(numbers) == 1:
            return self.points[numbers[0]]
        return max((self.points[number] for number in numbers), key=lambda point: (point.is_continued, not point.is_gone, point.attempt, -point.index))

    def _known(self, point: Point) -> list[Known]:
        """The tokens on the path to a point, piece by piece."""
        pieces: list[list[Known]] = []
        keep = point.num_tokens
        place: Point | None = point
        while place is not None:
            inherited = place.keep
            pieces.append(_first(place.known(), keep - inherited))
            keep = min(keep, inherited)
            place = None if place.parent is None else self.points[place.parent]
        return [piece for part in reversed(pieces) for piece in part]

    def _prompt_point(self, event: Replied, at: int, planned: Prompt | None) -> Point:
        base = None if event.parent is None else self.points[event.parent]
        if base is not None and base.choice is None and event.shared == len(base.messages) and not event.messages:
            return base
        shared = 0 if base is None else event.shared
        if planned is not None:
            digests = planned.digests
        else:
            digests = _linked((event.tools,) if base is None or not shared else base.digests[: shared + 1], event.messages)
        known = self._prompts.get(digests[-1])
        if known is not None:  # two at once asked the same
            return self.points[known]
        # Replies before those that are shared with another point were gone on from when that one was made.
        for one in digests[max(1, shared) : -1]:
            numbers = self._replies.get(one)
            if numbers is not None:
                self._likeliest(numbers).is_continued = True
        point = Point(
            number=len(self.points),
            parent=event.parent,
            shared=shared,
            keep=event.keep,
            pieces=event.pieces,
            num_tokens=event.keep + sum([len(piece.ids) for piece in event.pieces]),
            messages=event.messages if base is None else base.messages[:shared] + event.messages,
            digests=digests,
            at=at,
        )
        self._add(point)
        self._prompts[digests[-1]] = point.number
        for one in digests[shared + 1 :]:
            self._prefixes.setdefault(one, point.number)
        return point

    def _reply_point(self, prompt: Point, choice: Choice, index: int, event: Replied, at: int) -> Point:
        told = one_spelling(choice.message)
        link = _link(prompt.digests[-1], told)
        point = Point(
            number=len(self.points),
            parent=prompt.number,
            shared=len(prompt.messages),
            keep=prompt.num_tokens,
            pieces=(),
            num_tokens=prompt.num_tokens + len(choice.ids),
            messages=(*prompt.messages, told),
            digests=(*prompt.digests, link),
            at=at,
            choice=choice,
            sampler=event.sampler,
            attempt=prompt.num_attempts,
            index=index,
            is_gone=event.gone,
        )
        self._add(point)
        prompt.children.append(point.number)
        self._replies.setdefault(link, []).append(point.number)
        self._prefixes.setdefault(link, point.number)
        return point

    def _add(self, point: Point) -> None:
        self.num_tokens += point.num_tokens - point.keep
        self.points.append(point)


def _linked(before: tuple[str, ...], messages: Sequence[Message]) -> tuple[str, ...]:
    """The digests with one more for each message."""
    digests = list(before)
    for message in messages:
        digests.append(_link(digests[-1], message))
    return tuple(digests)


def _link(before: str, message: Message) -> str:
    spelled = f"{before}\0{message.role}\0{message.content}\0{message.tool_call_id or ''}\0{message.name or ''}\0".encode("utf-8", "surrogatepass")
    return digest(spelled + canonical_json(list(message.tool_calls)) if message.tool_calls else spelled)


def _first(pieces: Sequence[Known], num_tokens: int) -> list[Known]:
    """The first tokens of some pieces."""
    kept: list[Known] = []
    for piece in pieces:
        if num_tokens > 0:
            kept.append(piece if len(piece.ids) <= num_tokens else _Ids(piece.ids[:num_tokens]))
            num_tokens -= len(kept[-1].ids)
    return kept


@dataclass(frozen=True, slots=True, eq=False)
class _Ids:
    ids: Int32Array
