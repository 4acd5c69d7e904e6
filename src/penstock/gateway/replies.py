"""Replies in the shapes of OpenAI's chat API, whole and in chunks."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from penstock.chat import ChatTemplate, parse_tool_calls
from penstock.gateway.events import Choice
from penstock.gateway.requests import Ask
from penstock.gateway.sampling import Sampled
from penstock.types import Message, Usage, VersionRun
from penstock.types.frozen import quickly_made

Shape = dict[str, Any]
FILTERED = ":filtered"
"""Behind the policy's name for tokens whose sampling was bent: another policy's tokens never carry loss."""
LAST_EVENT = b"data: [DONE]\n\n"
UNFINISHED = "�"
"""What decoders write for bytes that are no character (yet)."""
_CONTEXT_TOKENS, _MOST_HELD_TOKENS = 8, 64
_LIFE, _NUMBERS = secrets.token_hex(8), count()


def choice_of(sampled: Sampled, index: int, ask: Ask, template: ChatTemplate, *, id: str) -> Choice:
    """A sampled reply as it is recorded and told."""
    ids, logprobs = sampled.arrays()
    text = template.split_reply(sampled.ids).text
    shown = cut_at(text, ask.stop) if sampled.finish == "stop" else text
    parsed = parse_tool_calls(shown, id_prefix=f"call_{id.rpartition('-')[2]}_{index}") if ask.calls_tools else None
    if parsed is not None and parsed.tool_calls:
        message = Message(role="assistant", content=parsed.content, tool_calls=parsed.tool_calls)
    else:
        message = Message(role="assistant", content=shown)
    versions = tuple([_filtered(run) for run in sampled.versions]) if ask.filters else tuple(sampled.versions)
    usage = Usage(prompt_tokens=sampled.usage.prompt_tokens, cached_tokens=sampled.usage.cached_tokens, sampled_tokens=len(ids), seconds=sampled.usage.seconds)
    return Choice(ids=ids, logprobs=logprobs, versions=versions, text=text, message=message, finish=sampled.finish, usage=usage)


def _filtered(run: VersionRun) -> VersionRun:
    return VersionRun(policy=run.policy + FILTERED, version=run.version, count=run.count, mixed_kv=run.mixed_kv, evidence=run.evidence)


def cut_at(text: str, stops: Sequence[str]) -> str:
    """`text` up to where the first of `stops` begins.

    >>> cut_at("a b END.", [" END", "b"])
    'a '
    """
    return text[: min([found for stop in stops if (found := text.find(stop)) >= 0], default=None)]


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answered request, to be told."""

    id: str
    model: str
    created: int
    choices: tuple[Choice, ...]
    alternatives: tuple[Sequence[Mapping[str, float]], ...] = ()
    """For each choice, the likeliest texts at each token. Known only while it is fresh: they are not recorded."""

    def whole(self, ask: Ask, texts: Callable[[int], str]) -> Shape:
        """The reply to a client that does not stream."""
        shapes = []
        for index, choice in enumerate(self.choices):
            shape: Shape = {"index": index, "message": message_shape(choice), "finish_reason": finish_of(choice), "logprobs": None}
            if ask.wants_logprobs:
                shape["logprobs"] = {"content": logprobs_shape(choice.ids.tolist(), choice.logprobs.tolist(), self._alternatives(index), texts)}
            shape.update(_facts(choice, ask))
            shapes.append(shape)
        whole = _envelope("chat.completion", self, shapes)
        whole["usage"] = usage_shape(self.choices)
        return whole

    def last_events(self, ask: Ask, streams: Mapping[int, TextStream], texts: Callable[[int], str]) -> list[bytes]:
        """What is still to be told to a client that streams, after `streams` have told a part: the rest of each choice, and why it ended."""
        events = []
        for index, choice in enumerate(self.choices):
            stream = streams.get(index) or TextStream(decode=lambda _: "")
            delta: Shape = {"content": choice.message.content[stream.num_shown :]} if choice.message.content else {}
            delta = delta | ({} if stream.is_begun else {"role": "assistant"})
            if choice.message.tool_calls:
                delta["tool_calls"] = [call | {"index": number} for number, call in enumerate(choice.message.tool_calls)]
            shape: Shape = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}
            if ask.wants_logprobs:
                start = stream.num_told
                rest = choice.ids.tolist()[start:], choice.logprobs.tolist()[start:], self._alternatives(index)[start:]
                shape["logprobs"] = {"content": logprobs_shape(*rest, texts)}
            events.append(event(_envelope("chat.completion.chunk", self, [shape])))
            last: Shape = {"index": index, "delta": {}, "finish_reason": finish_of(choice), "logprobs": None}
            events.append(event(_envelope("chat.completion.chunk", self, [last | _facts(choice, ask)])))
        if ask.include_usage:
            events.append(event(_envelope("chat.completion.chunk", self, []) | {"usage": usage_shape(self.choices)}))
        return [*events, LAST_EVENT]

    def _alternatives(self, index: int) -> Sequence[Mapping[str, float]]:
        return self.alternatives[index] if index < len(self.alternatives) else ()


def new_id() -> str:
    """A name for an answer."""
    # Random once, then counted: asking the system for randomness costs more than to put together what has the name.
    return f"chatcmpl-{_LIFE}{next(_NUMBERS):08x}"


def part_event(id: str, model: str, created: int, index: int, delta: Shape, logprobs: Shape | None) -> bytes:
    """A chunk of a reply that is not complete yet."""
    answer = Answer(id=id, model=model, created=created, choices=())
    return event(_envelope("chat.completion.chunk", answer, [{"index": index, "delta": delta, "finish_reason": None, "logprobs": logprobs}]))


def message_shape(choice: Choice) -> Shape:
    """The message of a reply."""
    message = choice.message
    if not message.tool_calls:
        return {"role": "assistant", "content": message.content}
    return {"role": "assistant", "content": message.content or None, "tool_calls": list(message.tool_calls)}


def finish_of(choice: Choice) -> str:
    """Why a reply ended, in OpenAI's words."""
    return "tool_calls" if choice.message.tool_calls and choice.finish == "stop" else choice.finish


def usage_shape(choices: Sequence[Choice]) -> Shape:
    """Tokens of a whole answer."""
    prompt = choices[0].usage.prompt_tokens if choices else 0
    sampled = sum([len(choice.ids) for choice in choices])
    cached = choices[0].usage.cached_tokens if choices else 0
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled, "prompt_tokens_details": {"cached_tokens": cached}}


def logprobs_shape(ids: Sequence[int], logprobs: Sequence[float], alternatives: Sequence[Mapping[str, float]], texts: Callable[[int], str]) -> list[Shape]:
    """Logprobs as chat completions have them."""
    shapes = []
    for place, (id, logprob) in enumerate(zip(ids, logprobs, strict=True)):
        likeliest = alternatives[place] if place < len(alternatives) else None
        shapes.append(_token(texts(id), logprob) | {"top_logprobs": [_token(text, value) for text, value in (likeliest or {}).items()]})
    return shapes


def event(shape: Shape) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(shape) + b"\n\n"


def _token(text: str, logprob: float) -> Shape:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


def _facts(choice: Choice, ask: Ask) -> Shape:
    """What we add for clients that ask for ids."""
    if not ask.return_token_ids:
        return {}
    return {"token_ids": choice.ids.tolist(), "versions": [msgspec.to_builtins(run) for run in choice.versions]}


def _envelope(kind: str, answer: Answer, choices: list[Shape]) -> Shape:
    return {"id": answer.id, "object": kind, "created": answer.created, "model": answer.model, "choices": choices}


@dataclass(slots=True, kw_only=True)
class TextStream:
    """Turns a growing reply into text that never has to be taken back: what it has shown is always a beginning of the reply's text.

    Held back: bytes that do not make a character yet, what may become a stop string, and the token that may have ended the reply.
    """

    decode: Callable[[Sequence[int]], str]
    stops: tuple[str, ...] = ()
    end_ids: frozenset[int] = frozenset()
    num_shown: int = 0
    """Characters that were shown."""
    num_told: int = 0
    """Tokens whose logprobs were told."""
    is_begun: bool = False
    is_stopped: bool = False
    _context: int = 0
    _read: int = 0
    _held: str = ""

    def push(self, ids: Sequence[int]) -> str:
        """Text that may be shown now. `ids`: all tokens so far."""
        if ids and ids[-1] in self.end_ids:
            ids = ids[:-1]
        if self.is_stopped or len(ids) <= self._read:
            return ""
        before, text = self.decode(ids[self._context : self._read]), self.decode(ids[self._context :])
        if text.endswith(UNFINISHED) and len(ids) - self._read < _MOST_HELD_TOKENS:
            return ""
        self._context, self._read = max(self._context, self._read - _CONTEXT_TOKENS), len(ids)
        self._held += text[len(before) :]
        cut = cut_at(self._held, self.stops)
        self.is_stopped = len(cut) < len(self._held)
        ready = len(cut) if self.is_stopped else len(cut) - self._overlap()
        shown, self._held = self._held[:ready], self._held[ready:]
        self.num_shown += len(shown)
        return shown

    def _overlap(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self.stops), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self.stops):
                return size
        return 0
