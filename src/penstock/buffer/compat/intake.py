"""From the bytes of an item to what the laws look at. Forgiving where old clients need it, strict about what would reach training."""

from __future__ import annotations

import asyncio
import math
import re
from collections import deque
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from penstock.buffer.compat.defaults import in_range
from penstock.buffer.intake import NOTE
from penstock.errors import InputError, InvalidError
from penstock.ledger.arrivals import Item
from penstock.wire import MAX_DEPTH, digest, parse_json, split_items

_PLAIN = re.compile(rf"(?!{NOTE})[A-Za-z0-9_.:/@+=~-]{{1,200}}")
_LONGEST = 200
"""Characters of an id that is kept as it is: room for the pass, and for what our own ids allow."""
_COMMON = {0.0: 0.0, 1.0: 1.0}
"""Rewards that nearly all items have: a million of them share two numbers."""
MOST_ITEMS = 8192
"""Items in one request: as many of 2 kB as there may be bytes. All are decided at once, and others wait meanwhile."""
_NO_ITEMS = f"the body must be an item or a list of 1 to {MOST_ITEMS} items"
LONG_BYTES = 1 << 16
BYTES_AT_ONCE = 1 << 18
"""Read before others get a turn: a few milliseconds."""
_begins_a_list = re.compile(rb"[ \t\r\n]*\[").match


def read_items(body: bytes, task_type: str) -> list[Item]:
    """The items of a request: one object, or a list of them. Raises `InputError` that names the item and the field; then none is taken."""
    if body[:1] == b"{" or _begins_a_list(body) is None:
        value = parse_json(body)
        if type(value) is not dict:
            raise InvalidError(_NO_ITEMS)
        return [item_of(value, body, task_type)]
    items: list[Item] = []
    deque(_reading(body, task_type, items), maxlen=0)
    return items


def is_long(body: bytes) -> bool:
    """Whether to read a request takes so long that others should get a turn meanwhile."""
    return len(body) >= LONG_BYTES and _begins_a_list(body) is not None


async def read_in_turns(body: bytes, task_type: str) -> list[Item]:
    """As `read_items`, of a list."""
    items: list[Item] = []
    for _ in _reading(body, task_type, items):
        await asyncio.sleep(0)
    return items


def _reading(body: bytes, task_type: str, items: list[Item]) -> Iterator[None]:
    """Adds the items of a list, and gives way now and then."""
    bodies = split_items(body, "json", most=MOST_ITEMS)
    if not 0 < len(bodies) <= MOST_ITEMS:
        raise InvalidError(_NO_ITEMS)
    num_bytes = 0
    for place, item in enumerate(bodies):
        num_bytes += len(item)
        if num_bytes > BYTES_AT_ONCE:
            num_bytes = 0
            yield
        try:
            items.append(item_of(parse_json(item, max_depth=MAX_DEPTH - 1), item, task_type))
        except InputError as error:
            raise type(error)(f"item {place}: {error}") from None


def item_of(value: Any, body: bytes, task_type: str) -> Item:
    """One item. Its bytes are kept as they came."""
    if type(value) is not dict:
        raise InvalidError(f"must be an object, got {_shown(value)}")
    instance = id_text(value, "instance_id")
    reward = reward_of(value)
    return Item(
        uid=id_of(id_text(value, "uid")),
        instance=instance,
        problem_id=id_of(instance),
        environment=task_type,
        reward=reward,
        kept=in_range(reward) and type(value.get("messages")) is list,
        body=body,
        digest=digest(body),
    )


def reward_of(value: dict[str, Any]) -> float | None:
    """The reward as a number; None for an item that has failed. A boolean is 0 or 1."""
    if "reward" not in value:
        raise InvalidError("reward is missing; a failed item says null, or a number below 0")
    reward = value["reward"]
    if reward is None:
        return None
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        raise InvalidError(f"reward must be a finite number, a boolean or null, got {_shown(reward)}")
    number = float(reward)
    return _COMMON.get(number, number)


def id_text(value: dict[str, Any], field: str) -> str:
    """An id as text: a text that is not empty, or an integer."""
    text = value.get(field)
    if type(text) is int:
        return str(text)
    if type(text) is not str or not text or len(text) > 4096:
        raise InvalidError(f"{field} must be a text of 1 to 4096 characters or an integer, got {_shown(text)}")
    if not text.isprintable():
        raise InvalidError(f"{field} has a control character, got {_shown(text)}")
    return text


def id_of(text: str) -> str:
    """Free text as an id of ours: what our ids do not allow is percent-encoded, so that different texts have different ids.

    >>> id_of("train/17"), id_of("a b%"), id_of(".."), id_of("annotation:1")
    ('train/17', 'a%20b%25', '.%2E', 'annotation%3A1')
    """
    if _PLAIN.fullmatch(text) is not None and ".." not in text:
        return text
    encoded = quote(text, safe="_.:/@+=~-").replace("..", ".%2E")
    if encoded.startswith(NOTE):
        encoded = f"{quote(NOTE, safe='')}{encoded.removeprefix(NOTE)}"
    if len(encoded) <= _LONGEST:
        return encoded
    return f"{encoded[: _LONGEST - 33].rstrip('%.')}%{digest(text.encode())}"


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
