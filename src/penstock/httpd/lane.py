"""The lane of direct routes: a plain request that has arrived whole is answered where its last byte came in, with one write.

Plain means: let in by the door, for a direct route's method and path, HTTP/1.1 on a connection that stays, its length told, nothing else under way
on the connection. Everything else, and every refusal of the door, goes by ASGI to the same function (`DirectRoute.endpoint`). So the lane needs no
rules of its own about chunks, `Expect`, 405 or the order of answers, and cannot differ in them.

The head of a request is parsed and admitted once for a connection. A client sends the same head again and again, but for the length of the body:
bytes that have been read before mean the same again, and are not read twice. What is remembered is only what the parser and the plain reading here
agree about. Clients of one kind, and one client on several paths, send the same headers behind other request lines: those are remembered for all
connections, and a plain request line in front of them is all that is read.
"""

from __future__ import annotations

import http
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import httptools
from starlette.convertors import Convertor
from starlette.routing import compile_path

from penstock.errors import InputError
from penstock.httpd.direct import DirectReply, DirectRoute, Head
from penstock.httpd.guard import Door
from penstock.types.frozen import quickly_made

MOST_HEAD_BYTES = 4096
"""Longer heads are not remembered."""
_END = b"\r\n\r\n"
_LENGTH = b"\r\nContent-Length: "
MOST_DIGITS = 15
"""Of a length."""
_MOST_HEADERS, _MOST_HEADS = 256, 4096
"""Kinds of headers that are remembered, and whole heads: a client may have its path on one connection now, and on another next."""
_PLAIN_LINE = re.compile(rb"([A-Z]+) ((?:/[A-Za-z0-9_~-]+)+) HTTP/1\.1")
"""A request line that cannot be read in two ways: nothing is escaped, dotted or asked behind the path."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHead:
    """A head that may come again: `before`, digits that tell the length of the body, `after`."""

    head: Head
    route: DirectRoute
    before: bytes
    num_before: int
    """Bytes of it."""
    after: bytes
    length: int | None
    """Of the body, where no digits are left out: then the whole head is `before`."""
    most_bytes: int
    """That a body may have."""


class Lane:
    """What all connections of a server know about its direct routes."""

    def __init__(self, routes: Sequence[DirectRoute], door: Door) -> None:
        self.door = door
        self._routes: dict[bytes, list[tuple[re.Pattern[str], dict[str, Convertor[Any]], DirectRoute]]] = {}
        for route in routes:
            pattern, _, convertors = compile_path(route.path)
            self._routes.setdefault(route.method.encode(), []).append((pattern, convertors, route))
        self._dated: list[tuple[bytes, bytes]] | None = None
        self._openings: dict[tuple[int, bytes], bytes] = {}
        self._headers: dict[bytes, KnownHead] = {}
        """A head by what stands between its request line and the length of the body."""
        self._heads: dict[bytes, KnownHead] = {}
        """A head by all that stands before the length of the body."""

    def routed(self, method: bytes, url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> tuple[Head, DirectRoute] | None:
        """The route for a request that the lane can answer, if there is one and the door lets it in."""
        candidates = self._routes.get(method)
        if not candidates:
            return None
        parsed = httptools.parse_url(url)
        path = unquote(parsed.path.decode("ascii"))
        found = self._matched(method, path)
        if found is None:
            return None
        route, params = found
        try:
            scopes = self.door.admitted(path, headers)
        except InputError:
            return None  # the guard says why
        return Head(method=route.method, path=path, query=parsed.query or b"", params=params, headers=tuple(headers), scopes=scopes), route

    def _matched(self, method: bytes, path: str) -> tuple[DirectRoute, dict[str, Any]] | None:
        for pattern, convertors, route in self._routes.get(method, ()):
            match = pattern.match(path)
            if match is not None:
                return route, {name: convertors[name].convert(value) for name, value in match.groupdict().items()}
        return None

    def learn(self, known: KnownHead) -> None:
        """Remember the headers of a head for other request lines."""
        # Whoever has no scope was let in for the path alone.
        if known.length is None and known.head.scopes:
            if len(self._headers) >= _MOST_HEADERS:
                self._headers.clear()
            self._headers[known.before[known.before.index(b"\r\n") :]] = known

    def recognized(self, data: bytes) -> KnownHead | None:
        """The head that `data` begins with, up to the length of the body, if its headers are known and its request line is plain and for a route here."""
        first = data.find(_LENGTH, 0, MOST_HEAD_BYTES)
        if first < 0:
            return None
        before = data[: first + len(_LENGTH)]
        head = self._heads.get(before)
        if head is None:
            head = self._put_together(before)
            if head is not None:
                if len(self._heads) >= _MOST_HEADS:
                    self._heads.clear()
                self._heads[before] = head
        return head

    def _put_together(self, before: bytes) -> KnownHead | None:
        """A head of known headers and a plain request line."""
        line = _PLAIN_LINE.match(before)
        known = None if line is None else self._headers.get(before[line.end() :])
        found = None if line is None or known is None else self._matched(line[1], line[2].decode("ascii"))
        if line is None or known is None or found is None:
            return None
        route, params = found
        head = Head(method=route.method, path=line[2].decode("ascii"), query=b"", params=params, headers=known.head.headers, scopes=known.head.scopes)
        return KnownHead(head=head, route=route, before=before, num_before=len(before), after=known.after, length=None, most_bytes=known.most_bytes)

    def rendered(self, reply: DirectReply, dated: list[tuple[bytes, bytes]], *, close: bool) -> bytes:
        """A reply as the bytes to be written. `dated` are the headers of every reply; the list is another one once they change."""
        if dated is not self._dated:
            self._dated, self._openings = dated, {}
        opening = self._openings.get((reply.status, reply.content_type))
        if opening is None:
            opening = self._openings[reply.status, reply.content_type] = _opening(reply, dated)
        body = reply.body
        if not reply.headers and not close:
            return b"%b%d\r\n\r\n%b" % (opening, len(body), body)
        further = [*reply.headers, (b"connection", b"close")] if close else reply.headers
        if any(b"\r" in value or b"\n" in value for _, value in further):
            raise ValueError("a header must not have more than one line")
        return b"%b%d\r\n%b\r\n%b" % (opening, len(body), b"".join([b"%b: %b\r\n" % field for field in further]), body)


def known_head(data: bytes, request_line: bytes, head: Head, route: DirectRoute, *, most_bytes: int) -> KnownHead | None:
    """What to compare later requests with, if `data` begins with the head that the parser has just read as `head`."""
    end = data.find(_END, 0, MOST_HEAD_BYTES)
    lines = data[: max(0, end)].split(b"\r\n")
    if lines[0] != request_line or tuple(_field(line) for line in lines[1:]) != head.headers:
        return None
    length = head.header(b"content-length") or b"0"
    if not length.isdigit():
        return None
    whole = data[: end + len(_END)]
    # No other line can be taken for it: one that begins so has that name, and the parser refuses a head that has it twice.
    start = whole.find(_LENGTH)
    first = start + len(_LENGTH) if start >= 0 else len(whole)
    last = whole.find(b"\r\n", first) if start >= 0 else len(whole)
    return KnownHead(
        head=head,
        route=route,
        before=whole[:first],
        num_before=first,
        after=whole[last:],
        length=int(length) if start < 0 else None,
        most_bytes=most_bytes,
    )


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.lower(), value.strip(b" \t")


def _opening(reply: DirectReply, dated: Sequence[tuple[bytes, bytes]]) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {http.HTTPStatus(reply.status).phrase}".encode()]
    lines += [b"%b: %b" % field for field in (*dated, (b"content-type", reply.content_type))]
    return b"\r\n".join([*lines, b"content-length: "])
