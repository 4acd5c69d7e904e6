"""Strict parsing of JSON and msgpack into plain values. msgspec does the work; what it lets through is found by one cheap look at the result.

Refused as `MalformedError` (the bytes): not JSON or msgpack, cut short, trailing bytes, bad UTF-8, depth over 32, a key twice in one object.
Refused as `InvalidError` (a value): NaN, infinity, numbers that overflow, integers beyond 64 bits, lone surrogates.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from penstock.errors import InputError, InvalidError, MalformedError
from penstock.types import Json
from penstock.wire._msgpack_scan import refuse_duplicate_keys

MAX_DEPTH = 32
"""Objects and lists inside each other that a body may have."""

_CONTAINERS = frozenset((dict, list))
_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_STEPS = bytes.maketrans(_BRACKETS, b"\x01\xff\x01\xff")
"""Opening brackets become 1, closing ones -1."""
_json = msgspec.json.Decoder()
_json_encoder = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Decoder()
_msgpack_encoder = msgspec.msgpack.Encoder()
_any_encoder = msgspec.msgpack.Encoder(enc_hook=lambda _: None)


def parse_json(body: bytes, *, max_depth: int = MAX_DEPTH) -> Json:
    """The value that `body` spells, or an `InputError` that says what is wrong and where. `max_depth` is less for a part of something deeper.

    >>> parse_json(b'{"a": [1, 1.0, true]}')
    {'a': [1, 1.0, True]}
    >>> parse_json(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
    penstock.errors.MalformedError: key 'a' stands twice in the object at $
    """
    try:
        tree = _json.decode(body)
    except (ValueError, RecursionError) as error:
        raise _json_fault(body, error) from None
    if type(tree) in _CONTAINERS:
        if _count(body, b"[") + _count(body, b"{") > max_depth:
            _refuse_depth(_outside_strings(body), max_depth)
        if not _has_as_many_keys(body, _json_encoder.encode(tree)):
            raise _json_fault(body, None)
    refuse_wide_integers(tree, body)
    return tree


def parse_msgpack(body: bytes) -> Any:
    """The plain value in `body`: as `parse_json`, and also bytes and `msgspec.msgpack.Ext`. Floats are not looked at.

    The caller must refuse what it does not expect (bytes, extensions, NaN, keys that are not text): the nouns do so field by field.
    """
    try:
        tree = _msgpack.decode(body)
    except RecursionError:
        raise too_deep() from None
    except UnicodeDecodeError:
        raise MalformedError("the body has text that is not UTF-8") from None
    except ValueError as error:
        raise MalformedError(f"the body is not msgpack: {error}") from None
    if type(tree) in _CONTAINERS:
        _refuse_deep_tree(tree)
        # Equal bytes prove that no key was lost. Another encoder may spell the same value in more bytes: then every key is looked at.
        if _msgpack_encoder.encode(tree) != body:
            refuse_duplicate_keys(body)
    return tree


def _has_as_many_keys(body: bytes, encoded: bytes) -> bool:
    """Whether `body` has as many keys as its value has, `encoded` again: a key that stood twice went in twice and comes out once."""
    if b"\\" in body and b"\\u" in body:
        # A colon in a text may be spelled by its number.
        return _outside_strings(body).count(b":") == _outside_strings(encoded).count(b":")
    # `encoded` has the colons of all texts that were kept, and one for each key: no more of either than `body`. So equal sums mean that nothing is missing.
    return _count(body, b":") == _count(encoded, b":")


def _count(text: bytes, sign: bytes) -> int:
    """`text.count(sign)` for one sign, in a third of the time: replacing looks for it with `memchr`."""
    return len(text) - len(text.replace(sign, b""))


def _refuse_depth(outside: bytes, max_depth: int = MAX_DEPTH) -> None:
    """Raise `MalformedError` if the brackets of a JSON body, given without its strings, are nested over `max_depth`."""
    steps = outside.translate(_STEPS, _NO_BRACKETS)
    if len(steps) > 2 * max_depth and np.frombuffer(steps, np.int8).cumsum(dtype=np.int32).max() > max_depth:
        raise too_deep()


def _refuse_deep_tree(tree: Any) -> None:
    """Raise `MalformedError` if a dict or list is nested over `MAX_DEPTH`. Keys are not looked into."""
    level: list[Any] = [tree]
    for _ in range(MAX_DEPTH):
        dicts = [value for value in level if type(value) is dict]
        # Most lists hold only scalars: this test runs in C and saves the loops from looking at them.
        lists = [value for value in level if type(value) is list and not _CONTAINERS.isdisjoint(map(type, value))]
        level = [*chain.from_iterable(map(dict.values, dicts)), *chain.from_iterable(lists)]
        if not level:
            return
    if not _CONTAINERS.isdisjoint(map(type, level)):
        raise too_deep()


def fits_64_bits(number: int) -> bool:
    """Whether msgpack and a store can hold the integer."""
    return -(2**63) <= number < 2**64


def refuse_wide_integers(value: Any, body: bytes) -> None:
    """Raise `InvalidError` if `value`, decoded from the JSON `body`, has an integer beyond 64 bits, which msgpack and a store could not hold."""
    try:
        # Throws the bytes away: nothing finds such an integer faster.
        _any_encoder.encode(value)
    except OverflowError:
        raise _json_fault(body, None) from None


def _outside_strings(body: bytes) -> bytes:
    """What stands outside of string literals, for a body that is known to be JSON."""
    if b"\\" in body:
        # Left to right, so an escaped backslash never hides or makes an escaped quote.
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(body.split(b'"')[::2])


def too_deep() -> MalformedError:
    """The refusal of a body that is nested too deep."""
    return MalformedError(f"the body is nested deeper than {MAX_DEPTH}")


class _Twice(dict[str, Any]):
    """An object in which `key` stood twice."""

    key = ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    twice = _Twice(found)
    for key, _ in pairs:
        if key in seen:
            twice.key = key
        seen.add(key)
    return twice


def _json_fault(body: bytes, error: Exception | None) -> InputError:
    """What is wrong with a body that was refused. Slow, and only for the message: the standard library reads more than we accept."""
    try:
        tree = json.loads(body.decode("utf-8"), object_pairs_hook=_object)
        return next(_faults(tree, "$", 1), None) or MalformedError(f"the body is not JSON: {error}")
    except UnicodeDecodeError as wrong:
        return MalformedError(f"byte {wrong.start} of the body is not UTF-8")
    except json.JSONDecodeError as wrong:
        return MalformedError(f"the body is not JSON: {wrong.msg} at character {wrong.pos}")
    except RecursionError:
        return too_deep()
    except ValueError:
        return InvalidError("the body has a number with too many digits")


def _faults(value: Any, path: str, depth: int) -> Iterator[InputError]:
    if isinstance(value, (dict, list)) and depth > MAX_DEPTH:
        yield too_deep()
    elif isinstance(value, dict):
        if isinstance(value, _Twice):
            yield MalformedError(f"key {show(value.key)} stands twice in the object at {path}")
        for key, child in value.items():
            yield from _faults(key, f"a key of {path}", depth)
            yield from _faults(child, f"{path}.{key}" if key.isidentifier() and len(key) <= 64 else f"{path}[{show(key)}]", depth + 1)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _faults(child, f"{path}[{index}]", depth + 1)
    elif type(value) is int and not fits_64_bits(value):
        yield InvalidError(f"{path} must fit 64 bits, got {show(value)}")
    elif isinstance(value, float) and not math.isfinite(value):
        yield InvalidError(f"{path} must be a finite number, got {value}")
    elif isinstance(value, str) and has_lone_surrogate(value):
        yield InvalidError(f"{path} has a lone surrogate, got {show(value)}")


def has_lone_surrogate(text: str) -> bool:
    """Whether `text` cannot be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def show(value: object) -> str:
    """`value` for a message: one line, no control characters, at most about 80 characters, and nothing about where it lies in memory."""
    text = ascii(value) if isinstance(value, str) else _ADDRESS.sub("", repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."
