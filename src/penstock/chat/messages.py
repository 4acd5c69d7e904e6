"""Messages on their way into a template: checked once at the border, then plain JSON values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import InvalidError
from penstock.types import Json, Message

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
RESERVED = "\ufdd0\ufdd1\ufdd2\ufdd3\ufdd4"
"""Noncharacters that this package writes between the lines: the lead of a mark, both ends of a span, a break, a probe."""
_NOT_TEXT = re.compile(f"[{RESERVED}\ud800-\udfff]")


def check_messages(messages: Sequence[Message], tools: Sequence[Json] | None = None) -> None:
    """Raises `InvalidError` for an unknown role, a reserved noncharacter or a lone surrogate, anywhere, and for what is nested too deep to look at."""
    try:
        for index, message in enumerate(messages):
            if message.role not in ROLES:
                raise InvalidError(f"message {index} has the role {message.role!r}; known are {', '.join(sorted(ROLES))}")
            if message.tool_calls or message.tool_call_id or message.name or not (message.content.isascii() or _NOT_TEXT.search(message.content) is None):
                _check(as_json(message), f"message {index}")
        if tools:
            _check(copied(tools), "tools")
    except RecursionError:
        raise InvalidError("a message or tool is nested too deep") from None


def check_text(text: str, where: str = "the text") -> None:
    """Raises `InvalidError` for a reserved noncharacter or a lone surrogate."""
    found = _NOT_TEXT.search(text)
    if found is not None:
        raise InvalidError(f"{where} holds U+{ord(found.group()):04X} at {found.start()}, which is not a character of text")


def as_json(message: Message) -> dict[str, Any]:
    """What a template gets to see. Arguments of tool calls are objects, as templates expect them, not the JSON text of OpenAI's API."""
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        plain["tool_calls"] = [_with_object_arguments(copied(call)) for call in message.tool_calls]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        plain["name"] = message.name
    return plain


def copied(value: Json) -> Any:
    """A fresh value of plain dicts, lists and scalars."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {str(key): copied(one) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [copied(one) for one in value]
    raise InvalidError(f"a message or tool holds a {type(value).__name__}, which is not JSON")


def _with_object_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def _check(value: Any, where: str) -> None:
    if isinstance(value, str):
        check_text(value, where)
    elif isinstance(value, dict):
        for key, one in value.items():
            check_text(key, where)
            _check(one, f"{where}.{key}")
    elif isinstance(value, list):
        for index, one in enumerate(value):
            _check(one, f"{where}[{index}]")
