"""What an agent is: somebody who is shown a situation and says what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from penstock.errors import InputError
from penstock.inference.client import Reply
from penstock.types import Int32Array, Json, Message
from penstock.types.frozen import quickly_made
from penstock.wire import parse_json


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Situation:
    """What a policy acts on: the conversation so far, and how much it may say."""

    messages: tuple[Message, ...]
    ids: Int32Array
    """The same as tokens, up to where the reply begins. A policy that samples continues these and never tokenizes the messages again."""
    max_tokens: int
    seed: int
    """Of this reply; another for each step of each try."""
    deadline_seconds: float
    """The episode fails if there is no action by then."""
    episode: str = ""
    """Names the episode: the same for all its steps, so that they may be sampled where its beginning is known."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Action:
    """What a policy does. Unpacks into structured action, raw output, logprobs and value estimate."""

    message: Message
    """What it adds to the conversation."""
    type: Literal["text", "tool_call", "terminate"] = "text"
    reply: Reply | None = None
    """The sampled tokens; None for a policy that does not sample, whose words are recorded as injected and never trained on."""
    truncated: bool = False
    """A limit cut the reply off."""
    value_estimate: float | None = None
    prompt_ids: Int32Array | None = None
    """The tokens that the reply continues, where a server has rendered the conversation by itself and says so; they are recorded as the prompt. None: the
    situation's own."""
    told_output: str | None = None
    """What the model wrote, if a policy that samples nothing here tells it; see `raw_output`."""
    told_logprobs: Json = None
    """The same for `logprobs`. They are told on, and nothing is trained on them: nobody knows which tokens of which version they belong to."""

    @property
    def structured(self) -> Json:
        """`{"type": "text", "content": ...}`, `{"type": "tool_call", "name": ..., "arguments": ...}` (the first, if there are several) or `terminate`."""
        if self.type == "tool_call":
            function = self.message.tool_calls[0]["function"]
            return {"type": "tool_call", "name": function["name"], "arguments": _arguments(function["arguments"])}
        return {"type": self.type, "content": self.message.content}

    @property
    def raw_output(self) -> str:
        """What the model wrote, before anything was read into it."""
        if self.reply is not None:
            return self.reply.text
        return self.message.content if self.told_output is None else self.told_output

    @property
    def logprobs(self) -> Json:
        """`{"token_ids": [...], "logprobs": [...]}`; of a policy that samples nothing here what it told, or None."""
        return self.told_logprobs if self.reply is None else {"token_ids": self.reply.ids.tolist(), "logprobs": self.reply.logprobs.tolist()}

    def __iter__(self) -> Iterator[Json]:
        yield self.structured
        yield self.raw_output
        yield self.logprobs
        yield self.value_estimate


def _arguments(value: Json) -> Json:
    """OpenAI's API has them as JSON text; whoever looks at an action wants the values. What a model wrote may be no JSON: then it stays as it is."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value.encode())
    except (InputError, UnicodeEncodeError):
        return value


TERMINATE = "terminate"
"""A call of a tool by this name ends the episode."""


def action_from(message: Message, *, reply: Reply | None = None, truncated: bool = False, prompt_ids: Int32Array | None = None) -> Action:
    """The action that a message is: its first tool call decides, and a message without any is text."""
    kind: Literal["text", "tool_call", "terminate"] = "text"
    if message.tool_calls:
        kind = "terminate" if message.tool_calls[0]["function"]["name"] == TERMINATE else "tool_call"
    return Action(type=kind, message=message, reply=reply, truncated=truncated, prompt_ids=prompt_ids)


def as_action(value: Json) -> Action:
    """What a policy returned, also if it is the four values themselves and not an `Action`: then nothing of it was sampled here.

    Raises `TypeError` for anything else.
    """
    if isinstance(value, Action):
        return value
    try:
        structured, raw_output, logprobs, value_estimate = value
        kind, content = structured["type"], structured.get("content", raw_output) or ""
        calls: tuple[Json, ...] = ()
        if kind == "tool_call":
            function = {"name": structured["name"], "arguments": structured.get("arguments") or {}}
            calls = ({"id": "call_0", "type": "function", "function": function},)
    except (TypeError, ValueError, KeyError, AttributeError):
        raise TypeError(f"a policy must return an Action, or structured action, raw output, logprobs and value estimate; got {value!r:.80}") from None
    if kind not in ("text", "tool_call", "terminate"):
        raise TypeError(f"an action is of type text, tool_call or terminate, got {kind!r:.80}")
    if not isinstance(content, str) or not isinstance(raw_output, str | None):
        raise TypeError(f"content and raw output of an action are texts, got {content!r:.80} and {raw_output!r:.80}")
    message = Message(role="assistant", content=content, tool_calls=calls)
    return Action(type=kind, message=message, value_estimate=value_estimate, told_output=raw_output, told_logprobs=logprobs)


class AgentPolicy(Protocol):
    """Decides. Shared by all episodes of a worker, so it keeps nothing about any of them."""

    async def get_action(self, observation: Situation, available_tools_specs: Sequence[Json] | None = None) -> Action:
        """What to do now. Raises `InfraError` if that cannot be found out."""
