"""What clients send to the OpenAI-compatible routes, checked: from JSON to a `Call`, or a `BadRequestError` that names the field.

Fields that we do not know are let through, as clients of that API expect; fields that would change what is sampled and that we do not have are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import BadRequestError, InputError
from penstock.types import Int32Array, Json, Message
from penstock.wire import check_id, parse_json

MAX_ALTERNATIVES = 20
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_PROMPTS = 1024
TEMPERATURES = (0.01, 100.0)
NEUTRAL: Mapping[str, tuple[Json, ...]] = {
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "repetition_penalty": (1, None),
    "min_p": (0, None),
    "logit_bias": ({}, None),
    "echo": (False, None),
    "suffix": ("", None),
    "min_tokens": (0, None),
    "response_format": ({"type": "text"}, None),
    "functions": ([], None),
}
"""Fields that this server does not have, with the values that ask for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What the two completion routes have in common."""

    model: str
    request_id: str | None
    """Name that the client gave the request, for `/abort`."""
    num_choices: int
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop_texts: tuple[str, ...]
    stop_ids: tuple[int, ...]
    ignore_eos: bool
    wants_logprobs: bool
    num_alternatives: int
    raw_logprobs: bool
    return_token_ids: bool
    stream: bool
    include_usage: bool
    """A last chunk with the usage, when streaming."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCall:
    """`/v1/completions`: a list of prompts, each text or ids."""

    call: Call
    prompts: tuple[str | Int32Array, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """`/v1/chat/completions`."""

    call: Call
    messages: tuple[Message, ...]
    tools: tuple[Json, ...]
    continue_final_message: bool


def read_completion(body: bytes) -> CompletionCall:
    """The call that `body` spells. Raises `BadRequestError` or `MalformedError`."""
    fields = _Fields(_object(body))
    logprobs = fields.integer("logprobs", None, 0, MAX_ALTERNATIVES)
    return CompletionCall(
        call=_call(fields, default_max_tokens=16, wants_logprobs=logprobs is not None, num_alternatives=logprobs or 0),
        prompts=_prompts(fields.get("prompt")),
    )


def read_chat(body: bytes) -> ChatCall:
    """The call that `body` spells. Raises `BadRequestError` or `MalformedError`."""
    fields = _Fields(_object(body))
    wants_logprobs = fields.flag("logprobs")
    num_alternatives = fields.integer("top_logprobs", 0, 0, MAX_ALTERNATIVES) or 0
    if num_alternatives and not wants_logprobs:
        raise BadRequestError("top_logprobs needs logprobs: true", "top_logprobs")
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages must be a list of at least one message", "messages")
    return ChatCall(
        call=_call(fields, default_max_tokens=None, wants_logprobs=wants_logprobs, num_alternatives=num_alternatives),
        messages=tuple(_message(index, message) for index, message in enumerate(messages)),
        tools=_tools(fields),
        continue_final_message=fields.flag("continue_final_message"),
    )


def _object(body: bytes) -> dict[str, Any]:
    value = parse_json(body)
    if not isinstance(value, dict):
        raise BadRequestError(f"the body must be a JSON object, got {type(value).__name__}")
    return value


def _call(fields: _Fields, *, default_max_tokens: int | None, wants_logprobs: bool, num_alternatives: int) -> Call:
    _refuse_unsupported(fields)
    num_choices = fields.integer("n", 1, 1, 2**31)
    if fields.get("best_of") not in (None, num_choices):
        raise BadRequestError("best_of is not served here; leave it out", "best_of")
    temperature = fields.number("temperature", 1.0, 0.0, TEMPERATURES[1])
    if 0 < temperature < TEMPERATURES[0]:
        raise BadRequestError(f"temperature must be 0 (greedy) or {TEMPERATURES[0]} to {TEMPERATURES[1]}, got {temperature}", "temperature")
    options = fields.get("stream_options")
    return Call(
        model=_text(fields.get("model", ""), "model"),
        request_id=_request_id(fields.get("request_id")),
        num_choices=num_choices or 1,
        max_tokens=fields.integer("max_tokens", fields.integer("max_completion_tokens", default_max_tokens, 1, 2**31), 1, 2**31),
        temperature=temperature,
        top_p=fields.number("top_p", 1.0, 1e-6, 1.0),
        # Others write -1 for "all".
        top_k=max(0, fields.integer("top_k", 0, -1, 2**31) or 0),
        seed=fields.integer("seed", None, -(2**63), 2**63 - 1),
        stop_texts=_stops(fields.get("stop")),
        stop_ids=tuple(_ids(fields.get("stop_token_ids") or [], "stop_token_ids").tolist()),
        ignore_eos=fields.flag("ignore_eos"),
        wants_logprobs=wants_logprobs,
        num_alternatives=num_alternatives,
        raw_logprobs=fields.flag("raw_logprobs"),
        return_token_ids=fields.flag("return_token_ids"),
        stream=fields.flag("stream"),
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


class _Fields:
    """Fields of a request; null counts as left out."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, name: str, default: Any = None) -> Any:
        value = self._values.get(name)
        return default if value is None else value

    def flag(self, name: str) -> bool:
        value = self.get(name, False)
        if not isinstance(value, bool):
            raise BadRequestError(f"{name} must be true or false, got {_shown(value)}", name)
        return value

    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        value = self.get(name, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadRequestError(f"{name} must be an integer in {low}..{high}, got {_shown(value)}", name)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not low <= value <= high:
            raise BadRequestError(f"{name} must be a number from {low} to {high}, got {_shown(value)}", name)
        return float(value)


def _refuse_unsupported(fields: _Fields) -> None:
    for name, neutral in NEUTRAL.items():
        value = fields.get(name)
        if value not in neutral:
            raise BadRequestError(f"{name} is not served here; leave it out", name)
    if fields.get("tool_choice", "auto") not in ("auto", "none"):
        raise BadRequestError("tool_choice must be auto or none", "tool_choice")


def _prompts(value: Any) -> tuple[str | Int32Array, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise BadRequestError(f"prompt must be a text, a list of token ids, or a list of either, got {_shown(value)}", "prompt")
    if isinstance(value[0], int):
        return (_ids(value, "prompt"),)
    if len(value) > MAX_PROMPTS:
        raise BadRequestError(f"at most {MAX_PROMPTS} prompts in one request, got {len(value)}", "prompt")
    return tuple(one if isinstance(one, str) else _ids(one, "prompt") for one in value)


def _ids(value: Any, name: str) -> Int32Array:
    # One look at the types of all, because a list of ids may be long: bool is an int to isinstance.
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise BadRequestError(f"{name} must be a list of token ids, got {_shown(value)}", name)
    if value and not 0 <= min(value) <= max(value) < 2**31:
        raise BadRequestError(f"{name} holds ids beyond any vocabulary: {min(value)}..{max(value)}", name)
    return np.array(value, np.int32)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops) or len(stops) > MAX_STOPS:
        raise BadRequestError(f"stop must be a text or up to {MAX_STOPS} texts of 1..{MAX_STOP_CHARACTERS} characters, got {_shown(value)}", "stop")
    return tuple(stops)


def _tools(fields: _Fields) -> tuple[Json, ...]:
    tools = fields.get("tools", [])
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRequestError(f"tools must be a list of objects, got {_shown(tools)}", "tools")
    return () if fields.get("tool_choice") == "none" else tuple(tools)


def _message(index: int, value: Any) -> Message:
    where = f"messages[{index}]"
    if not isinstance(value, dict):
        raise BadRequestError(f"{where} must be an object, got {_shown(value)}", "messages")
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadRequestError(f"{where}.tool_calls must be a list of objects, got {_shown(calls)}", "messages")
    return Message(
        role=_text(value.get("role"), f"{where}.role"),
        content=_content(value.get("content"), where),
        tool_calls=tuple(calls),
        tool_call_id=None if value.get("tool_call_id") is None else _text(value["tool_call_id"], f"{where}.tool_call_id"),
        name=None if value.get("name") is None else _text(value["name"], f"{where}.name"),
    )


def _content(value: Any, where: str) -> str:
    """Text, or the text parts of a list of parts, joined."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in value):
        return "".join(part["text"] for part in value)
    raise BadRequestError(f"{where}.content must be a text or a list of text parts, got {_shown(value)}", "messages")


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadRequestError(f"{name} must be a text, got {_shown(value)}", name)
    return value


def _request_id(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return check_id(_text(value, "request_id"), "request_id")
    except InputError as error:
        raise BadRequestError(str(error), "request_id") from None


def _shown(value: Sequence[Any] | Any) -> str:
    """A value as it stands in a sentence: its beginning."""
    text = repr(value[:4] if isinstance(value, list) else value)
    return text if len(text) <= 80 else text[:80] + "..."
