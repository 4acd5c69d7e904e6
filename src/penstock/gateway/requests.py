"""What clients of OpenAI's chat API send, checked: from JSON to an `Ask`, or a `BadRequestError` that names the field.

Fields that do not change what is sampled are let through unread, as clients of that API expect. Fields that bend the sampling away from the policy are
collected as `filters`: whether they are taken is for the session to say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import BadRequestError, InputError
from penstock.types import Json, Message
from penstock.types.frozen import changed, quickly_made
from penstock.wire import canonical_json, digest, parse_json

MAX_ALTERNATIVES, MAX_STOPS, MAX_STOP_CHARACTERS = 20, 16, 256
FILTERS: Mapping[str, tuple[Json, ...]] = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "bad_words": ([],),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
"""Fields that bend the sampling, with the values (beside null) that ask for nothing. Handed to the engine as they are."""
_NOT_SERVED: Mapping[str, tuple[Json, ...]] = {"functions": ([],), "function_call": ("none", "auto"), "best_of": (1,), "modalities": (["text"],), "audio": ()}


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request for a reply."""

    digest: str
    """Names the request; see `Replied`."""
    is_keyed: bool
    """The client named it by a key of its own: the same key again is the same request, however often."""
    is_retry: bool
    """The client says that it has asked before and got nothing."""
    model: str
    messages: tuple[Message, ...]
    """In one spelling: see `one_spelling`."""
    tools: tuple[Json, ...]
    calls_tools: bool
    """Whether calls are read out of replies."""
    num_choices: int
    max_tokens: int | None
    temperature: float
    seed: int | None
    stop: tuple[str, ...]
    wants_logprobs: bool
    num_alternatives: int
    filters: Mapping[str, Json]
    return_token_ids: bool
    stream: bool
    include_usage: bool


def read_ask(body: bytes, headers: Mapping[str, str] | None = None) -> Ask:
    """The request that `body` spells. `headers` (in lower case) may name it or call it a retry. Raises `BadRequestError` or `MalformedError`."""
    return ask_of(body, parse_json(body), headers or {})


def ask_of(body: bytes, plain: Json, headers: Mapping[str, str], *, before: tuple[Message, ...] = ()) -> Ask:
    """The request that `body` spells and that reads as `plain`, but for messages that stand before those and were read already."""
    fields = _Fields(plain)
    fields.refuse_what_is_not_served()
    choice = fields.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise BadRequestError(f"tool_choice must be auto or none: {_shown(choice)} would force words on the model that it did not choose", "tool_choice")
    wants_logprobs = fields.flag("logprobs")
    num_alternatives = fields.integer("top_logprobs", 0, 0, MAX_ALTERNATIVES) or 0
    if num_alternatives and not wants_logprobs:
        raise BadRequestError("top_logprobs needs logprobs: true", "top_logprobs")
    tools = _tools(fields.get("tools", []))
    options = fields.get("stream_options")
    name, is_keyed, is_retry = _named(body, headers)
    return Ask(
        digest=name,
        is_keyed=is_keyed,
        is_retry=is_retry,
        model=fields.text("model", ""),
        messages=before + _messages(fields.get("messages"), len(before)),
        tools=tools,
        calls_tools=bool(tools) and choice != "none",
        num_choices=fields.integer("n", 1, 1, 2**31) or 1,
        max_tokens=fields.integer("max_completion_tokens", fields.integer("max_tokens", None, 1, 2**31), 1, 2**31),
        temperature=_temperature(fields),
        seed=fields.integer("seed", None, -(2**63), 2**63 - 1),
        stop=_stops(fields.get("stop")),
        wants_logprobs=wants_logprobs,
        num_alternatives=num_alternatives,
        filters=fields.filters(),
        return_token_ids=fields.flag("return_token_ids"),
        stream=fields.flag("stream"),
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def ask_more(ask: Ask, body: bytes, more: Json, headers: Mapping[str, str]) -> Ask:
    """The request that `body` spells, where it says what `ask` says but for `more` messages behind those."""
    name, is_keyed, is_retry = _named(body, headers)
    return changed(ask, digest=name, is_keyed=is_keyed, is_retry=is_retry, messages=ask.messages + _messages(more, len(ask.messages)))


def _named(body: bytes, headers: Mapping[str, str]) -> tuple[str, bool, bool]:
    """The name of a request, whether its client gave it, and whether the client has asked before."""
    key = headers.get("idempotency-key")
    return digest(b"key:" + key.encode() if key else body), bool(key), headers.get("x-stainless-retry-count", "0") != "0"


def one_spelling(message: Message) -> Message:
    """The message with its calls in one spelling: id, type, name, and arguments as canonical JSON. Equal messages mean the same."""
    if not message.tool_calls:
        return message
    return Message(
        role=message.role,
        content=message.content,
        tool_calls=tuple(_call(call) for call in message.tool_calls),
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def _call(call: Mapping[str, Any]) -> Json:
    function = call.get("function")
    if not isinstance(function, dict):
        return dict(call)
    arguments = function.get("arguments")
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        spelled: Json = canonical_json(value).decode()
    except (ValueError, RecursionError, InputError):
        spelled = arguments
    return {"id": call.get("id"), "type": call.get("type") or "function", "function": {"name": function.get("name"), "arguments": spelled}}


class _Fields:
    """Fields of a request; null counts as left out."""

    def __init__(self, values: Any) -> None:
        if not isinstance(values, dict):
            raise BadRequestError(f"the body must be a JSON object, got {type(values).__name__}")
        self._values = values

    def get(self, name: str, default: Any = None) -> Any:
        value = self._values.get(name)
        return default if value is None else value

    def filters(self) -> dict[str, Json]:
        """Fields that bend the sampling, and do."""
        return {name: value for name, value in self._values.items() if name in FILTERS and value is not None and value not in FILTERS[name]}

    def refuse_what_is_not_served(self) -> None:
        """Raise `BadRequestError` for a field that asks for something that is not there."""
        for name, value in self._values.items():
            if name in _NOT_SERVED and value is not None and value not in _NOT_SERVED[name]:
                raise BadRequestError(f"{name} is not served here; leave it out", name)

    def flag(self, name: str) -> bool:
        value = self.get(name, False)
        if not isinstance(value, bool):
            raise BadRequestError(f"{name} must be true or false, got {_shown(value)}", name)
        return value

    def text(self, name: str, default: str) -> str:
        value = self.get(name, default)
        if not isinstance(value, str):
            raise BadRequestError(f"{name} must be a text, got {_shown(value)}", name)
        return value

    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        value = self.get(name, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadRequestError(f"{name} must be an integer in {low}..{high}, got {_shown(value)}", name)
        return value


def _temperature(fields: _Fields) -> float:
    value = fields.get("temperature", 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not 0 <= value <= 100:
        raise BadRequestError(f"temperature must be a number from 0 to 100, got {_shown(value)}", "temperature")
    return float(value)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
        raise BadRequestError(f"stop must be a text or up to {MAX_STOPS} texts of 1..{MAX_STOP_CHARACTERS} characters, got {_shown(value)}", "stop")
    return tuple(stops)


def _tools(value: Any) -> tuple[Json, ...]:
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise BadRequestError(f"tools must be a list of objects, got {_shown(value)}", "tools")
    return tuple(value)


def _messages(value: Any, first: int = 0) -> tuple[Message, ...]:
    """The messages, the first of which is number `first` of the request."""
    if not isinstance(value, list) or not (value or first):
        raise BadRequestError("messages must be a list of at least one message", "messages")
    return tuple([_message(first + place, message) for place, message in enumerate(value)])


def _message(number: int, value: Any) -> Message:
    if isinstance(value, dict) and len(value) == 2:
        role, content = value.get("role"), value.get("content")
        if type(role) is type(content) is str and role:
            return Message(role=role, content=content)
    where = f"messages[{number}]"
    if not isinstance(value, dict):
        raise BadRequestError(f"{where} must be an object, got {_shown(value)}", "messages")
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadRequestError(f"{where}.tool_calls must be a list of objects, got {_shown(calls)}", "messages")
    for name in ("role", "tool_call_id", "name"):
        if not isinstance(value.get(name, ""), str | None) or (name == "role" and not value.get(name)):
            raise BadRequestError(f"{where}.{name} must be a text, got {_shown(value.get(name))}", "messages")
    message = Message(
        role=value["role"],
        content=_content(value.get("content"), where),
        tool_call_id=value.get("tool_call_id"),
        name=value.get("name"),
        tool_calls=tuple(calls),
    )
    return one_spelling(message) if calls else message


def _content(value: Any, where: str) -> str:
    """Text, or the text parts of a list of parts, joined."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in value):
        return "".join(part["text"] for part in value)
    raise BadRequestError(f"{where}.content must be a text or a list of text parts, got {_shown(value)}", "messages")


def _shown(value: Any) -> str:
    """A value as it stands in a sentence: its beginning."""
    text = repr(value[:4] if isinstance(value, list) else value)
    return text if len(text) <= 80 else text[:80] + "..."
