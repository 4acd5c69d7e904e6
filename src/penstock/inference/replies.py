"""Replies in OpenAI's shapes, with what we add: token ids, version runs, raw logprobs, facts about the sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from penstock.chat import parse_tool_calls
from penstock.inference.engine.requests import Choice, Finish
from penstock.inference.engine.sampling import Drawn
from penstock.inference.engine.stops import Decode, cut_at_stop
from penstock.inference.protocol import Call
from penstock.types import SamplerFacts

Shape = dict[str, Any]


@dataclass(slots=True)
class TokenTexts:
    """Text of single tokens, remembered."""

    decode: Decode
    _texts: dict[int, str] = field(default_factory=dict)

    def __getitem__(self, token: int) -> str:
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self.decode([token])
        return text


def shown_ids(choice: Choice) -> list[int]:
    """Sampled tokens whose text is shown: all but the token that ended the reply."""
    ids = choice.ids
    ended_by_id = choice.finish is Finish.STOP and choice.stop_text is None
    return ids[:-1] if ended_by_id else ids


def reply_text(choice: Choice, decode: Decode) -> str:
    """The text of an ended reply."""
    return cut_at_stop(decode(shown_ids(choice)), choice.stop_text)


def envelope(kind: str, id: str, model: str, created: int, choices: Sequence[Shape]) -> Shape:
    """What all replies have around their choices."""
    return {"id": id, "object": kind, "created": created, "model": model, "choices": list(choices)}


def usage_shape(prompt_tokens: int, choices: Sequence[Choice], seconds: float) -> Shape:
    """Tokens of a whole call. `cached_tokens` are those of the prompts that did not have to be computed for it."""
    sampled = sum(len(choice.drawn) for choice in choices)
    cached = sum(choice.cached_tokens for choice in choices if choice.index == 0)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": prompt_tokens + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
        "seconds": seconds,
    }


def sampler_shape(call: Call, facts: SamplerFacts) -> Shape:
    """How the replies were drawn."""
    filters: dict[str, float] = {}
    if call.temperature > 0 and call.top_p < 1.0:
        filters["top_p"] = call.top_p
    if call.temperature > 0 and call.top_k > 0:
        filters["top_k"] = float(call.top_k)
    return asdict(facts) | {"temperature": call.temperature, "filters": filters}


def completion_choice(choice: Choice, index: int, call: Call, texts: TokenTexts) -> Shape:
    """An ended reply of `/v1/completions`."""
    shape: Shape = {"index": index, "text": reply_text(choice, texts.decode), "finish_reason": choice.finish, "logprobs": None}
    if call.wants_logprobs:
        shape["logprobs"] = completion_logprobs(choice.drawn, texts, offset=0)
    return shape | token_facts(choice, call)


def chat_choice(choice: Choice, index: int, call: Call, texts: TokenTexts, *, has_tools: bool, id: str) -> Shape:
    """An ended reply of `/v1/chat/completions`."""
    message, finish = chat_message(choice, texts, has_tools=has_tools, id=id)
    shape: Shape = {"index": index, "message": {"role": "assistant"} | message, "finish_reason": finish, "logprobs": None}
    if call.wants_logprobs:
        shape["logprobs"] = {"content": chat_logprobs(choice.drawn, texts)}
    return shape | token_facts(choice, call)


def chat_message(choice: Choice, texts: TokenTexts, *, has_tools: bool, id: str) -> tuple[Shape, str]:
    """Content and tool calls of an ended reply, and why it ended."""
    text = reply_text(choice, texts.decode)
    assert choice.finish is not None
    parsed = parse_tool_calls(text, id_prefix=f"call_{id.rpartition('-')[2]}_{choice.index}") if has_tools else None
    if parsed is None or not parsed.tool_calls:
        return {"content": text}, choice.finish
    finish = "tool_calls" if choice.finish is Finish.STOP else str(choice.finish)
    return {"content": parsed.content or None, "tool_calls": list(parsed.tool_calls)}, finish


def token_facts(choice: Choice, call: Call) -> Shape:
    """What we add to an ended reply."""
    shape: Shape = {"versions": [asdict(run) for run in choice.versions]}
    if choice.stop_text is not None:
        shape["stop_reason"] = choice.stop_text
    if call.return_token_ids:
        shape["token_ids"] = choice.ids
    if call.raw_logprobs:
        shape["raw_logprobs"] = [token.raw_logprob for token in choice.drawn]
    return shape


def completion_logprobs(tokens: Sequence[Drawn], texts: TokenTexts, *, offset: int) -> Shape:
    """Logprobs as `/v1/completions` has them. `offset`: characters before the first token."""
    words = [texts[token.id] for token in tokens]
    offsets = []
    for word in words:
        offsets.append(offset)
        offset += len(word)
    return {
        "tokens": words,
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_alternatives(token, texts) for token in tokens] if any(token.alternatives for token in tokens) else None,
        "text_offset": offsets,
    }


def _alternatives(token: Drawn, texts: TokenTexts) -> Mapping[str, float]:
    # Several tokens may have one text (bytes that are no character alone): the likeliest of them is kept.
    shape: dict[str, float] = {}
    for id, logprob in token.alternatives:
        shape.setdefault(texts[id], logprob)
    return shape


def chat_logprobs(tokens: Sequence[Drawn], texts: TokenTexts) -> list[Shape]:
    """Logprobs as `/v1/chat/completions` has them."""

    def one(id: int, logprob: float) -> Shape:
        text = texts[id]
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return [one(token.id, token.logprob) | {"top_logprobs": [one(*alternative) for alternative in token.alternatives]} for token in tokens]


def event(shape: Shape) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(shape) + b"\n\n"


LAST_EVENT = b"data: [DONE]\n\n"
