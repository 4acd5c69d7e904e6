"""Text that grows token by token: where it ends, and how much of it may be shown already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Decode = Callable[[Sequence[int]], str]
"""Text of token ids."""

UNFINISHED = "�"
"""What decoders write for bytes that are no character (yet)."""
_CONTEXT_TOKENS = 8
"""Tokens that are decoded again in front of new ones, because the text of a token may depend on those before it."""

_MOST_HELD_TOKENS = 64
"""After so many tokens without the end of a character the text is taken for broken and shown as it is, or each token would cost more than the last."""


def num_tail_tokens(stop_texts: Sequence[str]) -> int:
    """How many of the last tokens may spell a stop string: a character has at most four (one per byte)."""
    return 4 * max(map(len, stop_texts), default=0) + _CONTEXT_TOKENS


def stop_in_tail(decode: Decode, tail_ids: Sequence[int], stop_texts: Sequence[str]) -> str | None:
    """The stop string that comes first in the text of the last tokens, if there is one. `num_tail_tokens` of them are enough, however long the reply."""
    tail = decode(tail_ids)
    found = [(tail.find(stop), stop) for stop in stop_texts if stop in tail]
    return min(found)[1] if found else None


def cut_at_stop(text: str, stop_text: str | None) -> str:
    """`text` up to where `stop_text` begins.

    >>> cut_at_stop("a b END.", " END")
    'a b'
    """
    return text if stop_text is None else text.partition(stop_text)[0]


@dataclass(slots=True)
class TextStream:
    """Turns tokens as they come into text that never has to be taken back.

    Held back: bytes that do not make a character yet, and what may become a stop string.
    """

    decode: Decode
    stop_texts: Sequence[str] = ()
    _ids: list[int] = field(default_factory=list)
    _context: int = 0
    _read: int = 0
    _held: str = ""

    def push(self, ids: Sequence[int]) -> str:
        """New text that may be shown now."""
        self._held += self._new_text(ids, final=False)
        ready = len(self._held) - self._stop_overlap()
        shown, self._held = self._held[:ready], self._held[ready:]
        return shown

    def close(self, ids: Sequence[int], stop_text: str | None) -> str:
        """The rest, after the last tokens, up to the stop string if one ended the reply."""
        return cut_at_stop(self._held + self._new_text(ids, final=True), stop_text)

    def _new_text(self, ids: Sequence[int], *, final: bool) -> str:
        self._ids += ids
        before = self.decode(self._ids[self._context : self._read])
        text = self.decode(self._ids[self._context :])
        if not final and text.endswith(UNFINISHED) and len(self._ids) - self._read < _MOST_HELD_TOKENS:
            return ""
        self._context = max(self._context, self._read - _CONTEXT_TOKENS)
        self._read = len(self._ids)
        return text[len(before) :]

    def _stop_overlap(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self.stop_texts), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self.stop_texts):
                return size
        return 0
