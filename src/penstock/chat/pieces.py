"""What rendering gives: token ids, each run of them with the message it spells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from penstock.types import Int32Array, Source
from penstock.types.frozen import changed, quickly_made


class Rewrite(StrEnum):
    """A way in which a conversation is not just the older one with something added, once new messages follow."""

    LAST_REPLY = "last_reply"
    """Some replies are shown changed as soon as a message follows: without their thinking, as a rule. Asking for one reply tells (see `extends`)."""
    OLD_REPLIES = "old_replies"
    """Replies that were shown whole for a while are changed later, by a message that does not follow them."""
    PROMPT = "prompt"
    """What stands before a reply in the history is not the prompt that it was generated from (a hint that thinking is off, say)."""
    FRONT = "front"
    """Text ahead of the last reply moves or changes (a system prompt or tools that travel with the last user message, say)."""
    PLACE = "place"
    """Nothing old changes, but what a message adds depends on what came before its reply (the number of the round, say)."""
    NO_END = "no_end"
    """No token of its own ends a reply, so the sampled one is missing from the history."""
    TRIMS = "trims"
    """Only white space of replies changes. Not taken for a rewritten history: what was sampled stays as it was sampled."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """A run of tokens from one source."""

    ids: Int32Array
    source: Source
    """`template`, or `env` for the text of a message."""
    message_index: int | None = None
    """Which of the given messages these tokens spell; None for what the template wrote around them."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rendered:
    """Messages as tokens, in order."""

    pieces: tuple[Piece, ...]

    @property
    def ids(self) -> Int32Array:
        """All tokens."""
        return joined_ids(self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fork:
    """How known tokens go on: the first `keep` of them stay, then come `pieces`. If all stay, it is no fork but an extension."""

    keep: int
    pieces: tuple[Piece, ...]

    @property
    def ids(self) -> Int32Array:
        """The tokens that come after the kept ones."""
        return joined_ids(self.pieces)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A sampled reply, read."""

    text: str
    """Without the token that ended it."""
    ended: bool
    """False if it was cut off before it came to an end by itself."""


class Known(Protocol):
    """Tokens that are already in a trace; a `Piece` and a `Segment` both are."""

    @property
    def ids(self) -> Int32Array: ...


def joined_ids(known: Sequence[Known]) -> Int32Array:
    """The tokens of all, one after another."""
    return np.concatenate([one.ids for one in known]) if known else np.zeros(0, np.int32)


def shifted(pieces: Sequence[Piece], offset: int) -> tuple[Piece, ...]:
    """The pieces with messages counted from `offset`."""
    return tuple([piece if piece.message_index is None else changed(piece, message_index=piece.message_index + offset) for piece in pieces])


def without_first(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """The pieces without their first token."""
    head = changed(pieces[0], ids=pieces[0].ids[1:])
    return (head, *pieces[1:]) if len(head.ids) else tuple(pieces[1:])
