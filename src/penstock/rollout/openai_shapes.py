"""Conversations and replies in the shapes of OpenAI's API, with what other servers add to them: token ids, and versions where they are known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import InfraError
from penstock.inference.client import Reply
from penstock.types import Evidence, InferenceMetadata, Int32Array, Json, Message, SamplerFacts, Usage, VersionRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Under what name replies are recorded, and as which version if the server does not say."""

    policy: str = "policy"
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChatReply:
    """A reply of the chat route."""

    message: Message
    finish_reason: str
    prompt_ids: Int32Array | None
    """The conversation as the server rendered it; None if it does not tell."""
    reply: Reply | None
    """With tokens; None if the server does not give them."""


def message_shape(message: Message) -> Json:
    """A message as the API wants it: calls have their arguments as JSON text."""
    shape: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shape["tool_calls"] = [_call_shape(call) for call in message.tool_calls]
    optional = {"tool_call_id": message.tool_call_id, "name": message.name}
    return shape | {key: value for key, value in optional.items() if value}


def read_completion(answer: Json, origin: Origin) -> Reply:
    """The first choice of `/v1/completions`. Raises `InfraError` if it has no tokens with logprobs."""
    try:
        choice = answer["choices"][0]
        reply = _tokens(choice, answer, str(choice.get("text") or ""), (choice.get("logprobs") or {}).get("token_logprobs"), origin)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise InfraError(f"the server's reply cannot be read: {type(error).__name__}: {error}") from error
    if reply is None:
        raise InfraError("the server gives no token ids with logprobs: it cannot be sampled from by ids")
    return reply


def read_chat(answer: Json, origin: Origin) -> ChatReply:
    """The first choice of `/v1/chat/completions`. Raises `InfraError` if it cannot be read."""
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        content = str(message.get("content") or "")
        scored = (choice.get("logprobs") or {}).get("content")
        logprobs = None if scored is None else [token["logprob"] for token in scored]
        prompt_ids = answer.get("prompt_token_ids")
        return ChatReply(
            message=Message(role="assistant", content=content, tool_calls=tuple(_checked_call(call) for call in message.get("tool_calls") or ())),
            finish_reason=str(choice.get("finish_reason") or ""),
            prompt_ids=None if prompt_ids is None else np.array(prompt_ids, np.int32),
            reply=_tokens(choice, answer, content, logprobs, origin),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise InfraError(f"the server's reply cannot be read: {type(error).__name__}: {error}") from error


def _tokens(choice: Mapping[str, Any], answer: Mapping[str, Any], text: str, logprobs: Sequence[float] | None, origin: Origin) -> Reply | None:
    ids = choice.get("token_ids")
    if ids is None or logprobs is None:
        return None
    usage = answer.get("usage") or {}
    sampler = answer.get("sampler") or {}
    return Reply(
        ids=np.array(ids, np.int32),
        logprobs=np.array(logprobs, np.float32),
        versions=_versions(choice.get("versions"), len(ids), origin),
        text=text,
        metadata=InferenceMetadata(
            sampler=SamplerFacts(**sampler),
            usage=Usage(
                prompt_tokens=int(usage.get("prompt_tokens") or 0),
                cached_tokens=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
                sampled_tokens=len(ids),
                seconds=float(usage.get("seconds") or 0.0),
            ),
            finish_reason=str(choice.get("finish_reason") or ""),
        ),
    )


def _versions(runs: Json, num_tokens: int, origin: Origin) -> tuple[VersionRun, ...]:
    """As the server says; if it says nothing, all under the version that is asserted."""
    if runs is None:
        return (VersionRun(policy=origin.policy, version=origin.version, count=num_tokens, evidence=Evidence.ASSERTED),) if num_tokens else ()
    return tuple(VersionRun(**(run | {"evidence": Evidence(run["evidence"])})) for run in runs)


def _checked_call(call: Json) -> Json:
    function = call["function"]
    if not isinstance(function["name"], str) or not isinstance(function.get("arguments", ""), (str, dict)):
        raise ValueError(f"a call must have a name and arguments, got {function!r:.80}")
    return {"id": str(call.get("id") or ""), "type": "function", "function": {"name": function["name"], "arguments": function.get("arguments") or "{}"}}


def _call_shape(call: Json) -> Json:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}
