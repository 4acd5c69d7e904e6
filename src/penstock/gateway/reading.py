"""Requests of one session, read: a client sends its whole history with each of them, and what was read before is not read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash

from penstock.errors import InputError
from penstock.gateway.requests import Ask, ask_of
from penstock.types import Message
from penstock.types.frozen import quickly_made
from penstock.wire import parse_json


class _Request(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_Request)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """How a request began, up to the end of its last message."""

    length: int
    digest: bytes
    """Of the first `length` bytes."""
    opening: bytes
    """The bytes up to the bracket that opens the messages."""
    messages: tuple[Message, ...]


class Reader:
    """Reads the requests of one session, in any order. Those that go on from the one before cost what they add."""

    def __init__(self) -> None:
        self._heard: _Heard | None = None

    def read(self, body: bytes, headers: Mapping[str, str]) -> Ask:
        """The request that `body` spells. Raises `BadRequestError` or `MalformedError`, the same as if it were the first."""
        heard = self._heard
        rest = b"" if heard is None else _rest(heard, body)
        if heard is None or not rest:
            return self._whole(body, headers)
        # Without what is known, it is a request like any other: only what is new can be wrong.
        short = heard.opening + rest
        try:
            ask = ask_of(body, parse_json(short), headers, before=heard.messages)
        except InputError:
            return self._whole(body, headers)  # which says where it is wrong
        end = len(body) - len(short) + _end(short, len(heard.opening))
        self._heard = _Heard(length=end, digest=_digest(body, end), opening=heard.opening, messages=ask.messages)
        return ask

    def _whole(self, body: bytes, headers: Mapping[str, str]) -> Ask:
        plain: Any = parse_json(body)
        ask = ask_of(body, plain, headers)
        messages = bytes(_decoder.decode(body).messages)
        # The same text may stand in another field; then another look would be needed to tell the two apart.
        start = body.find(messages) + 1
        end = start + len(messages) - 2
        self._heard = None
        if body.count(messages) == 1 and parse_json(body[:start] + body[end:]) == plain | {"messages": []}:
            self._heard = _Heard(length=end, digest=_digest(body, end), opening=body[:start], messages=ask.messages)
        return ask


def _rest(heard: _Heard, body: bytes) -> bytes:
    """What follows behind the messages that are known: new ones, and the other fields. Empty if the request begins otherwise."""
    if len(body) <= heard.length or _digest(body, heard.length) != heard.digest:
        return b""
    rest = body[heard.length :].lstrip(b" \t\r\n")
    if rest.startswith(b"]"):
        return rest
    # A comma alone would be no list; that a message must follow it is for the parser to say.
    return rest[1:] if rest.startswith(b",") and not rest[1:].lstrip(b" \t\r\n").startswith(b"]") else b""


def _end(short: bytes, start: int) -> int:
    """Where the bracket stands that closes the messages, which begin at `start`."""
    return start + len(bytes(_decoder.decode(short).messages)) - 2


def _digest(body: bytes, length: int) -> bytes:
    return xxhash.xxh3_128_digest(memoryview(body)[:length])
