"""Tool calls in a reply's text, in the style of Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from penstock.types import Json

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """A reply's text with its tool calls taken out."""

    content: str
    """The rest. Unchanged if there is no well-formed call; without the white space around it if there is."""
    tool_calls: tuple[Json, ...]
    """In the shape of OpenAI's API."""


def parse_tool_calls(text: str, *, id_prefix: str = "call") -> ParsedReply:
    """Take well-formed calls out of `text`; all else stays text. Calls are numbered: `<id_prefix>_0`, ...

    A call is one JSON object with a name and an object of arguments, and nothing else.

    >>> parse_tool_calls('Let me see. <tool_call>{"name": "look", "arguments": {"at": "map"}}</tool_call>').content
    'Let me see.'
    >>> parse_tool_calls('<tool_call>{"name": "look"}</tool_call>').tool_calls
    ()
    """
    calls: list[Json] = []
    rest: list[str] = []
    last = 0
    for block in _BLOCK.finditer(text):
        call = _parsed(block.group(1))
        if call is None:
            continue
        name, arguments = call
        calls.append({"id": f"{id_prefix}_{len(calls)}", "type": "function", "function": {"name": name, "arguments": arguments}})
        rest.append(text[last : block.start()])
        last = block.end()
    return ParsedReply(content="".join([*rest, text[last:]]).strip() if calls else text, tool_calls=tuple(calls))


def _parsed(body: str) -> tuple[str, str] | None:
    """Name, and arguments as JSON text; None if the call is malformed."""
    try:
        call = json.loads(body, parse_constant=_refuse, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or call.keys() != {"name", "arguments"}:
        return None
    name, arguments = call["name"], call["arguments"]
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return name, json.dumps(arguments, ensure_ascii=False)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
