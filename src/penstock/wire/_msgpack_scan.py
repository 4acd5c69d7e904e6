"""Looks at every key of a msgpack body, for bodies that were not written in the shortest form."""

from __future__ import annotations

from penstock.errors import MalformedError

_FIXED = {0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
_FIXED |= {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}
"""Bytes that a value with this first byte takes in all."""

_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1), 0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
"""Width of the length that follows the first byte, and bytes that stand between it and the content."""

_LISTS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}


def refuse_duplicate_keys(body: bytes) -> None:
    """Raise `MalformedError` if some map of a well-formed body of bounded depth has a key twice."""
    _value(body, 0)


def _value(body: bytes, at: int) -> int:
    """Look at the value that starts at byte `at`; return where it ends."""
    first = body[at]
    if first < 0x80 or first >= 0xE0:
        return at + 1
    if first < 0x90:
        return _map(body, at + 1, first & 0x0F)
    if first < 0xA0:
        return _list(body, at + 1, first & 0x0F)
    if first < 0xC0:
        return at + 1 + (first & 0x1F)
    if first in _FIXED:
        return at + _FIXED[first]
    if first in _SIZED:
        width, between = _SIZED[first]
        return at + 1 + width + between + _number(body, at + 1, width)
    if first in _LISTS:
        return _list(body, at + 1 + _LISTS[first], _number(body, at + 1, _LISTS[first]))
    return _map(body, at + 1 + _MAPS[first], _number(body, at + 1, _MAPS[first]))


def _number(body: bytes, at: int, width: int) -> int:
    return int.from_bytes(body[at : at + width], "big")


def _list(body: bytes, at: int, count: int) -> int:
    for _ in range(count):
        at = _value(body, at)
    return at


def _map(body: bytes, at: int, count: int) -> int:
    seen: set[bytes] = set()
    for _ in range(count):
        end = _value(body, at)
        key = _content(body[at:end])
        if key in seen:
            raise MalformedError(f"key {ascii(key.decode())[:80]} stands twice in one map, the second time at byte {at}")
        seen.add(key)
        at = _value(body, end)
    return at


def _content(key: bytes) -> bytes:
    """The UTF-8 bytes of a key, however its length was written."""
    first = key[0]
    if 0xA0 <= first < 0xC0:
        return key[1:]
    if 0xD9 <= first <= 0xDB:
        return key[1 + _SIZED[first][0] :]
    raise MalformedError("a key of a map is not text")
