"""Aborted replies, remembered by their text, so that a client that sends only text goes on from the very tokens that were sampled.

A client of the chat route that continues a reply (`continue_final_message`) says what it was given: the messages and the text so far. Text does not
determine tokens: encoding it again may split it otherwise, a template may trim it, and a character may have been cut in the middle. So the server
remembers which tokens it was. What it does not remember is encoded from the text, as a stranger's would be.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import xxhash

from penstock.types import Int32Array

MAX_KEPT_REPLIES = 65_536
MAX_KEPT_TOKENS = 4_000_000
"""Of all remembered replies together: 16 MB."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Origin:
    """What a chat answers, and what stands of the answer already."""

    prompt: Int32Array
    """The conversation up to the place where the reply begins."""
    text: str
    """The reply so far, as the client was given it."""
    ids: Int32Array
    """The tokens of `text`."""

    @property
    def opened(self) -> Int32Array:
        """All tokens that are there: what the engine goes on from."""
        return np.concatenate([self.prompt, self.ids]) if len(self.ids) else self.prompt

    def grown(self, text: str, ids: Int32Array) -> Origin:
        """The same after a client has put `text` behind what it had."""
        return Origin(prompt=self.prompt, text=self.text + text, ids=np.concatenate([self.ids, ids]))


class PartialReplies:
    """Tokens of aborted replies. The oldest are forgotten first.

    >>> replies, prompt = PartialReplies(), np.array([7, 8], np.int32)
    >>> replies.keep(Origin(prompt=prompt, text="ab", ids=np.array([1, 2], np.int32)))
    >>> replies.find(prompt, "ab").tolist(), replies.find(prompt, "a")
    ([1, 2], None)
    """

    def __init__(self, *, max_tokens: int = MAX_KEPT_TOKENS, max_replies: int = MAX_KEPT_REPLIES) -> None:
        self._max_tokens = max_tokens
        self._max_replies = max_replies
        self._ids: OrderedDict[bytes, Int32Array] = OrderedDict()
        self._num_tokens = 0

    def keep(self, reply: Origin) -> None:
        """Remember an aborted reply."""
        key = _key(reply.prompt, reply.text)
        self._num_tokens -= len(self._ids.pop(key, ()))
        self._ids[key] = reply.ids
        self._num_tokens += len(reply.ids)
        while len(self._ids) > self._max_replies or self._num_tokens > self._max_tokens:
            _, forgotten = self._ids.popitem(last=False)
            self._num_tokens -= len(forgotten)

    def find(self, prompt: Int32Array, text: str) -> Int32Array | None:
        """The tokens of `text` as a reply to `prompt`; None if it is no reply of ours, or was forgotten."""
        return self._ids.get(_key(prompt, text))


def _key(prompt: Int32Array, text: str) -> bytes:
    return xxhash.xxh3_128_digest(np.ascontiguousarray(prompt, np.int32).tobytes()) + xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass"))
