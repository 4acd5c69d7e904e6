"""Bodies of completions, made of what is new in them: an episode's prompt is its last one with something added, and is not written out again from the start.

For one turn that is a question of microseconds; for the hundredth of a long episode, of most of what the turn costs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from xxhash import xxh3_128_digest

from penstock.types import Int32Array
from penstock.types.frozen import quickly_made

MOST_KEPT_BYTES = 64 * 2**20
"""Of all prompts that are remembered together. Those that were not asked for longest are forgotten, and written out anew if they come again."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Continuation:
    """Tokens to be continued, and how."""

    ids: Sequence[int] | Int32Array
    max_tokens: int
    temperature: float = 1.0
    seed: int | None = None
    """With one, the same request has the same reply."""
    stop: Sequence[str] = ()
    stop_ids: Sequence[int] = ()
    request_id: str | None = None
    """Under which it can be aborted."""
    affinity: str | None = None
    """Which requests share a beginning, for those who have several servers."""


def completion_body(wanted: Continuation, prompts: PromptTexts | None = None) -> bytes:
    """What is sent to sample one reply, with its token ids and logprobs. `prompts` remembers what was sent before under the same `affinity`."""
    options = _options(wanted.max_tokens, wanted.temperature, tuple(wanted.stop), tuple(wanted.stop_ids), wanted.request_id)
    array = np.asarray(wanted.ids)
    text = msgspec.json.encode(array.tolist())[1:-1] if prompts is None or wanted.affinity is None else prompts.text(wanted.affinity, array)
    if wanted.seed is None:
        return b'{"prompt":[%b],%b}' % (text, options)
    return b'{"prompt":[%b],"seed":%d,%b}' % (text, wanted.seed, options)


@lru_cache(maxsize=1024)
def _options(max_tokens: int, temperature: float, stop: tuple[str, ...], stop_ids: tuple[int, ...], request_id: str | None) -> bytes:
    """All but the prompt and the seed, without the braces. Few of them differ, unless requests have names."""
    options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "logprobs": 0, "return_token_ids": True}
    if stop:
        options["stop"] = stop
    if stop_ids:
        options["stop_token_ids"] = stop_ids
    if request_id is not None:
        options["request_id"] = request_id
    return msgspec.json.encode(options)[1:-1]


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Known:
    count: int
    digest: bytes
    """Of so many ids. Not the ids themselves: whoever gave them may go on to write into the same memory."""
    text: bytes


class PromptTexts:
    """The last prompts as they were written, by whose they are.

    >>> prompts = PromptTexts()
    >>> prompts.text("a", np.array([1, 20])), prompts.text("a", np.array([1, 20, 300])), prompts.text("a", np.array([1, 2]))
    (b'1,20', b'1,20,300', b'1,2')
    """

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._num_bytes = 0

    def text(self, owner: str, ids: Int32Array) -> bytes:
        """The ids as JSON, without the brackets. Whatever was remembered, they are these ids."""
        ids, text, count = np.ascontiguousarray(ids), b"", 0
        known = self._known.pop(owner, None)
        if known is not None:
            self._num_bytes -= len(known.text)
            if len(ids) >= known.count and xxh3_128_digest(ids[: known.count].data) == known.digest:
                text, count = known.text, known.count
        if len(ids) > count:
            written = msgspec.json.encode(ids[count:].tolist())[1:-1]
            text = b"%b,%b" % (text, written) if count else written
        if text:
            self._known[owner] = _Known(count=len(ids), digest=xxh3_128_digest(ids.data), text=text)
            self._num_bytes += len(text)
        while self._num_bytes > self._most_bytes:
            _, forgotten = self._known.popitem(last=False)
            self._num_bytes -= len(forgotten.text)
        return text
