"""Frames of the log of `MemoryStore`: one frame for each change set, one entry in it for each record, everything under a checksum.

frame   magic, synced length of the log when it was written, length of the entries, checksum of this head
entry   noun, lengths of place and body, checksum of the body, checksum of this head and the place; then place and body
"""

from __future__ import annotations

import ast
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast, get_args

from penstock.buffer.store.places import Place, places
from penstock.types import Record
from penstock.wire import checksum, decode_msgpack, encode_msgpack

_MAGIC = b"\xf5log"
_FRAME = struct.Struct("<4sQIQ")
_ENTRY = struct.Struct("<BIIQQ")
_NOUNS: tuple[type[Record], ...] = get_args(Record)
_NUMBERS = {noun: number for number, noun in enumerate(_NOUNS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the log says about one place."""

    place: Place
    record: Record | None
    """None if its bytes fail their checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A stretch of the log."""

    start: int
    stop: int
    synced: int = 0
    """How much of the log is known to have been safe when this was written."""
    entries: tuple[Entry, ...] = ()
    """Those that can be told apart."""
    whole: bool = False
    """Every byte is as it was written."""


class LogCodec:
    """Frames to bytes and back. Remembers what it has encoded, so that reading a log again costs little: equal bytes are equal records."""

    def __init__(self) -> None:
        self._known: dict[bytes, Record] = {}

    def encode(self, records: Sequence[Record], synced: int) -> bytes:
        """The frame of a change set."""
        entries = b"".join(map(self._encode_entry, records))
        head = _FRAME.pack(_MAGIC, synced, len(entries), 0)[:-8]
        return b"".join((head, checksum(head).to_bytes(8, "little"), entries))

    def decode(self, log: bytes) -> Iterator[Frame]:
        """The log as frames without a gap; what is between two heads that can be read is a frame that is not whole."""
        start = 0
        while start < len(log):
            head = _frame_head(log, start)
            if head is None:
                following = _next_head(log, start + 1)
                yield Frame(start=start, stop=following)
                start = following
                continue
            synced, length = head
            first, stop = start + _FRAME.size, start + _FRAME.size + length
            entries, whole = self._decode_entries(log[first:stop], length)
            # A torn frame may claim bytes that the next one has taken since.
            stop = stop if whole else _next_head(log, start + 1)
            yield Frame(start=start, stop=stop, synced=synced, entries=entries, whole=whole)
            start = stop

    def _encode_entry(self, record: Record) -> bytes:
        body = encode_msgpack(record)
        self._known[body] = record
        place = repr(places(record)[0]).encode()
        head = _ENTRY.pack(_NUMBERS[type(record)], len(place), len(body), checksum(body), 0)[:-8]
        return b"".join((head, checksum(head + place).to_bytes(8, "little"), place, body))

    def _decode_entries(self, data: bytes, length: int) -> tuple[tuple[Entry, ...], bool]:
        entries: list[Entry] = []
        at = 0
        while at + _ENTRY.size <= len(data):
            number, place_length, body_length, body_sum, head_sum = _ENTRY.unpack_from(data, at)
            first = at + _ENTRY.size
            place = data[first : first + place_length]
            if checksum(data[at : first - 8] + place) != head_sum:
                return tuple(entries), False
            body = data[first + place_length : first + place_length + body_length]
            intact = len(body) == body_length and checksum(body) == body_sum
            where = cast(Place, ast.literal_eval(place.decode())) if not intact else None
            record = self._record(body, _NOUNS[number]) if intact else None
            entries.append(Entry(place=where or places(cast(Record, record))[0], record=record))
            at = first + place_length + body_length
        return tuple(entries), at == length and all(entry.record is not None for entry in entries)

    def _record(self, body: bytes, noun: type[Record]) -> Record:
        known = self._known.get(body)
        return decode_msgpack(body, noun) if known is None else known


def _frame_head(log: bytes, start: int) -> tuple[int, int] | None:
    """(synced, length of the entries) if there is a head at `start`."""
    head = log[start : start + _FRAME.size]
    if len(head) < _FRAME.size or not head.startswith(_MAGIC) or checksum(head[:-8]) != int.from_bytes(head[-8:], "little"):
        return None
    _, synced, length, _ = _FRAME.unpack(head)
    return synced, length


def _next_head(log: bytes, start: int) -> int:
    """Where the next head is, or the end of the log."""
    at = log.find(_MAGIC, start)
    while at >= 0 and _frame_head(log, at) is None:
        at = log.find(_MAGIC, at + 1)
    return len(log) if at < 0 else at
