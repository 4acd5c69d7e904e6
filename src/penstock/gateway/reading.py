"""Requests of one session, read: a client sends its whole history with each of them, and what was read before is not read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash

from penstock.errors import InputError
from penstock.gateway.requests import Ask, ask_more, ask_of
from penstock.types.frozen import quickly_made
from penstock.wire import parse_json


class _Request(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_Request)
_SPACE = b" \t\r\n"


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """A request that was read."""

    length: int
    """Bytes up to the bracket that closes its messages."""
    digest: bytes
    """Of those."""
    opening: bytes
    """The bytes up to the bracket that opens the messages."""
    closing: bytes
    """The bytes from the bracket on that closes them."""
    ask: Ask


class Reader:
    """Reads the requests of one session, in any order. Those that go on from the one before cost what they add.

    Most have nothing new but messages: of those nothing else is looked at. Other fields may be new as well.
    """

    def __init__(self) -> None:
        self._heard: _Heard | None = None

    def read(self, body: bytes, headers: Mapping[str, str]) -> Ask:
        """The request that `body` spells. Raises `BadRequestError` or `MalformedError`, the same as if it were the first."""
        heard = self._heard
        if heard is None or len(body) <= heard.length or _digest(body, heard.length) != heard.digest:
            return self._whole(body, headers)
        try:
            ask = self._more(heard, body, headers) or self._further(heard, body, headers)
        except InputError:
            ask = None
        return ask or self._whole(body, headers)  # which says where it is wrong, if it is

    def _more(self, heard: _Heard, body: bytes, headers: Mapping[str, str]) -> Ask | None:
        """The request, if it is the one before with more messages."""
        end = len(body) - len(heard.closing)
        if end <= heard.length or not body.endswith(heard.closing):
            return None
        added = body[heard.length : end].lstrip(_SPACE)
        if not added.startswith(b","):
            return None
        # What is new, at the depth at which it stands. Where this is a list and nothing behind it, the bracket behind it is the one that closed it before.
        more: Any = parse_json(b'{"":[%b]}' % added[1:])
        if len(more) != 1 or not more[""]:
            return None
        ask = ask_more(heard.ask, body, more[""], headers)
        self._heard = _Heard(length=end, digest=_digest(body, end), opening=heard.opening, closing=heard.closing, ask=ask)
        return ask

    def _further(self, heard: _Heard, body: bytes, headers: Mapping[str, str]) -> Ask | None:
        """The request, if it begins as the one before."""
        rest = _rest(heard, body)
        if not rest:
            return None
        # Without what is known, it is a request like any other: only what is new can be wrong.
        short = heard.opening + rest
        ask = ask_of(body, parse_json(short), headers, before=heard.ask.messages)
        end = len(body) - len(short) + _end(short, len(heard.opening))
        self._heard = _Heard(length=end, digest=_digest(body, end), opening=heard.opening, closing=body[end:], ask=ask)
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
            self._heard = _Heard(length=end, digest=_digest(body, end), opening=body[:start], closing=body[end:], ask=ask)
        return ask


def _rest(heard: _Heard, body: bytes) -> bytes:
    """What follows behind the messages that are known: new ones, and the other fields. Empty if it cannot be told without them."""
    rest = body[heard.length :].lstrip(_SPACE)
    if rest.startswith(b"]"):
        return rest
    # A comma alone would be no list; that a message must follow it is for the parser to say.
    return rest[1:] if rest.startswith(b",") and not rest[1:].lstrip(_SPACE).startswith(b"]") else b""


def _end(short: bytes, start: int) -> int:
    """Where the bracket stands that closes the messages, which begin at `start`."""
    return start + len(bytes(_decoder.decode(short).messages)) - 2


def _digest(body: bytes, length: int) -> bytes:
    return xxhash.xxh3_128_digest(memoryview(body)[:length])
