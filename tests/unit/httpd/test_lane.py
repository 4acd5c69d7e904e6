"""What a lane remembers of heads, and how it writes replies. That clients see no difference is in `tests/properties/test_lanes.py`."""

from __future__ import annotations

import pytest

from penstock.httpd import Access, DirectReply, DirectRequest, DirectRoute, Scope, Token
from penstock.httpd.direct import Head
from penstock.httpd.guard import Door
from penstock.httpd.lane import MOST_HEAD_BYTES, KnownHead, Lane, known_head

HEADERS = ((b"host", b"localhost"), (b"authorization", b"Bearer right"), (b"content-length", b"3"), (b"accept", b"*/*"))
LINE = b"POST /runs/a/echo HTTP/1.1"
DATA = LINE + b"\r\nHost: localhost\r\nAuthorization:Bearer right \r\nContent-Length: 3\r\nAccept: */*\r\n\r\nabc"
BEFORE = DATA[: DATA.index(b"3\r\nAccept")]


def answer(request: DirectRequest) -> DirectReply:
    return DirectReply(request.body)


ROUTES = [
    DirectRoute(method="POST", path="/runs/{run}/echo", answer=answer, needs=None),
    DirectRoute(method="POST", path="/numbers/{number:int}", answer=answer, needs=None),
    DirectRoute(method="GET", path="/runs/{run}/echo", answer=answer, needs=None),
]


@pytest.fixture
def lane() -> Lane:
    return Lane(ROUTES, Door(Access(token="right", tokens=(Token(value="look", scopes=frozenset({Scope.VIEW})),))))


def known(lane: Lane, data: bytes = DATA, line: bytes = LINE, headers: tuple[tuple[bytes, bytes], ...] = HEADERS) -> KnownHead | None:
    """What a connection remembers of a request."""
    method, url, _ = line.split(b" ")
    found = lane.routed(method, url, headers)
    return None if found is None else known_head(data, line, *found, most_bytes=99)


def test_a_request_finds_its_route_with_what_stands_in_its_path(lane: Lane) -> None:
    found = lane.routed(b"POST", b"/runs/a%20b/echo?x=1", HEADERS)
    assert found is not None
    head, route = found
    assert (route, head.method, head.path, head.query, head.params) == (ROUTES[0], "POST", "/runs/a b/echo", b"x=1", {"run": "a b"})
    assert (head.headers, head.scopes) == (HEADERS, frozenset(Scope))
    number = lane.routed(b"POST", b"/numbers/7", HEADERS)
    assert number is not None
    assert (number[1], number[0].params, number[0].query) == (ROUTES[1], {"number": 7}, b"")
    look = lane.routed(b"GET", b"/runs/a/echo", (*HEADERS, (b"authorization", b"Bearer look")))
    assert look is not None
    assert (look[1], look[0].scopes) == (ROUTES[2], {Scope.VIEW})


@pytest.mark.parametrize(
    "method,url", [(b"PUT", b"/runs/a/echo"), (b"CONNECT", b"localhost:80"), (b"POST", b"/runs/a"), (b"POST", b"/numbers/a"), (b"GET", b"/numbers/7")]
)
def test_what_is_for_nobody_here_goes_on(lane: Lane, method: bytes, url: bytes) -> None:
    assert lane.routed(method, url, HEADERS) is None


def test_whoever_is_not_let_in_goes_on_to_be_told_why(lane: Lane) -> None:
    assert lane.routed(b"POST", b"/runs/a/echo", ((b"authorization", b"Bearer wrong"),)) is None


def test_a_head_is_remembered_around_the_length_of_its_body(lane: Lane) -> None:
    found = known(lane)
    assert found is not None
    assert (found.before, found.num_before, found.after) == (BEFORE, len(BEFORE), b"\r\nAccept: */*\r\n\r\n")
    assert (found.length, found.most_bytes, found.route) == (None, 99, ROUTES[0])


def test_a_head_that_tells_no_length_is_remembered_whole(lane: Lane) -> None:
    line, headers = b"GET /runs/a/echo HTTP/1.1", HEADERS[:2]
    whole = line + b"\r\nHost: localhost\r\nAuthorization: Bearer right\r\n\r\n"
    found = known(lane, whole + b"GET /next", line, headers)
    assert found is not None
    assert (found.before, found.num_before, found.after, found.length) == (whole, len(whole), b"", 0)


def test_a_head_that_is_remembered_whole_takes_no_place_among_those_of_all_connections(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.httpd.lane._MOST_HEADERS", 1)
    learned(lane)
    line = b"GET /runs/a/echo HTTP/1.1"
    found = known(lane, line + b"\r\nHost: localhost\r\nAuthorization: Bearer right\r\n\r\n", line, HEADERS[:2])
    assert found is not None
    lane.learn(found)
    assert lane.recognized(DATA) is not None


def test_a_length_that_is_spelled_otherwise_belongs_to_the_head(lane: Lane) -> None:
    data = DATA.replace(b"Content-Length: 3", b"content-length:  3")
    found = known(lane, data)
    assert found is not None
    assert (found.before, found.after, found.length) == (data.removesuffix(b"abc"), b"", 3)


@pytest.mark.parametrize(
    "data",
    [
        DATA.replace(LINE, b"POST /runs/b/echo HTTP/1.1"),
        DATA.replace(b"Accept: */*", b"Accept: */* "[:-2]),
        DATA.replace(b"Host: localhost", b"Hose: localhost"),
        DATA.replace(b"\r\nAccept: */*", b""),
        DATA.replace(b"\r\n\r\nabc", b"\r\nMore: 1\r\n\r\nabc"),
        DATA.replace(b"\r\n\r\nabc", b"\r\n"),
        b"",
    ],
)
def test_what_the_parser_has_read_otherwise_is_not_remembered(lane: Lane, data: bytes) -> None:
    assert known(lane, data) is None


def test_a_length_that_is_no_number_is_not_remembered(lane: Lane) -> None:
    headers = tuple((name, b"+3" if name == b"content-length" else value) for name, value in HEADERS)
    assert known(lane, DATA.replace(b"Length: 3", b"Length: +3"), LINE, headers) is None


def padded(num_bytes: int) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """A request whose head has so many bytes, with the empty line behind it, and its headers."""
    more = b"x" * (num_bytes - len(DATA) + len(b"abc") - len(b"\r\nMore: "))
    return DATA.replace(b"\r\n\r\nabc", b"\r\nMore: " + more + b"\r\n\r\nabc"), (*HEADERS, (b"more", more))


def test_long_heads_are_not_remembered(lane: Lane) -> None:
    longest, headers = padded(MOST_HEAD_BYTES)
    assert known(lane, longest, LINE, headers) is not None
    longer, headers = padded(MOST_HEAD_BYTES + 1)
    assert known(lane, longer, LINE, headers) is None


def learned(lane: Lane) -> KnownHead:
    found = known(lane)
    assert found is not None
    lane.learn(found)
    return found


def test_known_headers_are_recognized_behind_another_plain_request_line(lane: Lane) -> None:
    assert lane.recognized(DATA) is None
    first = learned(lane)
    data = DATA.replace(LINE, b"POST /numbers/7 HTTP/1.1")
    found = lane.recognized(data)
    assert found is not None
    before = data[: data.index(b"3\r\nAccept")]
    assert (found.route, found.before, found.num_before, found.after, found.length) == (ROUTES[1], before, len(before), first.after, None)
    assert (found.most_bytes, found.head) == (
        99,
        Head(method="POST", path="/numbers/7", query=b"", params={"number": 7}, headers=HEADERS, scopes=frozenset(Scope)),
    )
    # The whole head is known from now on, and not put together again.
    assert lane.recognized(data.replace(b"Length: 3", b"Length: 12")) is found


@pytest.mark.parametrize(
    "line",
    [
        b"POST /runs/a%20b/echo HTTP/1.1",
        b"POST /runs/a.b/echo HTTP/1.1",
        b"POST /runs/a/echo?x=1 HTTP/1.1",
        b"POST /runs/a/echo/ HTTP/1.1",
        b"POST http://localhost/runs/a/echo HTTP/1.1",
        b"POST /runs/a/echo HTTP/1.0",
        b"POST /runs/a/echo HTTP/1.1 ",
        b"post /runs/a/echo HTTP/1.1",
        b"PUT /runs/a/echo HTTP/1.1",
        b"POST /nowhere HTTP/1.1",
        b" POST /runs/a/echo HTTP/1.1",
    ],
)
def test_a_request_line_that_is_not_plain_or_for_nobody_here_is_left_to_the_parser(lane: Lane, line: bytes) -> None:
    learned(lane)
    assert lane.recognized(DATA) is not None
    assert lane.recognized(DATA.replace(LINE, line)) is None


def test_other_headers_are_not_recognized(lane: Lane) -> None:
    learned(lane)
    assert lane.recognized(DATA.replace(b"Bearer right", b"Bearer wrong")) is None
    assert lane.recognized(DATA.replace(b"Content-Length", b"Content-length")) is None
    assert lane.recognized(b"") is None


def test_headers_of_whoever_was_let_in_for_the_path_alone_are_not_remembered_for_others() -> None:
    lane = Lane([DirectRoute(method="POST", path="/livez", answer=answer, needs=None), *ROUTES], Door(Access(token="right")))
    line, headers = b"POST /livez HTTP/1.1", ((b"host", b"localhost"), (b"content-length", b"3"))
    found = known(lane, line + b"\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", line, headers)
    assert found is not None
    assert found.head.scopes == frozenset()
    lane.learn(found)
    assert lane.recognized(b"POST /runs/a/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc") is None


def test_what_is_remembered_is_bounded(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.httpd.lane._MOST_HEADERS", 2)
    monkeypatch.setattr("penstock.httpd.lane._MOST_HEADS", 2)
    kinds = [DATA.replace(b"Host: localhost", b"Host: 127.0.0.%d" % number) for number in (1, 2, 3)]
    for number, data in enumerate(kinds, 1):
        found = known(lane, data, LINE, ((b"host", b"127.0.0.%d" % number), *HEADERS[1:]))
        assert found is not None
        lane.learn(found)
        if number == 2:
            assert [lane.recognized(data) is not None for data in kinds] == [True, True, False]
            heads = [lane.recognized(data) for data in kinds[:2]]
            assert heads == [lane.recognized(data) for data in kinds[:2]]
    # The third kind of headers was one too many, and so is a third whole head: what was known of them before is given up.
    whole = lane.recognized(kinds[0])
    assert whole is heads[0], "whole heads are apart from kinds of headers"
    assert lane.recognized(kinds[2]) is not None
    assert [lane.recognized(data) is not None for data in kinds] == [False, False, True]


DATED = [(b"date", b"today"), (b"server", b"penstock")]


def test_a_reply_is_written_with_its_status_headers_and_length(lane: Lane) -> None:
    start = b"HTTP/1.1 200 OK\r\ndate: today\r\nserver: penstock\r\ncontent-type: application/json\r\ncontent-length: "
    assert lane.rendered(DirectReply(b"[1]"), DATED, close=False) == start + b"3\r\n\r\n[1]"
    assert lane.rendered(DirectReply(b""), DATED, close=False) == start + b"0\r\n\r\n"
    assert lane.rendered(DirectReply(b"[1]"), DATED, close=True) == start + b"3\r\nconnection: close\r\n\r\n[1]"
    more = DirectReply(b"full", 429, b"text/plain", ((b"retry-after", b"3"),))
    busy = b"HTTP/1.1 429 Too Many Requests\r\ndate: today\r\nserver: penstock\r\ncontent-type: text/plain\r\ncontent-length: 4\r\nretry-after: 3\r\n"
    assert lane.rendered(more, DATED, close=False) == busy + b"\r\nfull"
    assert lane.rendered(more, DATED, close=True) == busy + b"connection: close\r\n\r\nfull"
    # The start of a reply is made once, until the headers of all replies change.
    tomorrow = [(b"date", b"tomorrow")]
    assert lane.rendered(DirectReply(b""), tomorrow, close=False).startswith(b"HTTP/1.1 200 OK\r\ndate: tomorrow\r\ncontent-type: ")


@pytest.mark.parametrize("value", [b"a\nset-cookie: b", b"a\rb"])
def test_a_header_of_several_lines_is_never_written(lane: Lane, value: bytes) -> None:
    with pytest.raises(ValueError, match="more than one line"):
        lane.rendered(DirectReply(b"", headers=((b"x-more", value),)), DATED, close=False)
