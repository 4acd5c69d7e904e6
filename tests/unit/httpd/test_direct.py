"""Direct routes as functions: what they are told, and what becomes of what they give or raise, by either lane."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from starlette.requests import Request

from penstock.errors import ConflictError, InvariantError, LimitError, MethodError, StoreError, UnauthorizedError
from penstock.httpd import DirectReply, DirectRequest, DirectRoute, Scope
from penstock.httpd.direct import Answer, Head, told

HEAD = Head(method="POST", path="/echo", query=b"", params={}, headers=((b"a", b"1"), (b"b", b"2"), (b"a", b"3")), scopes=frozenset({Scope.VIEW}))


def request(scopes: frozenset[Scope] = HEAD.scopes) -> DirectRequest:
    head = Head(method="POST", path="/echo", query=b"", params={}, headers=(), scopes=scopes)
    return DirectRequest(head, b"body", iter(("first", "second")).__next__)


def route(answer: Callable[[DirectRequest], Answer], needs: Scope | None = None, **shape: Any) -> DirectRoute:
    return DirectRoute(method="POST", path="/echo", answer=answer, needs=needs, **shape)


def raising(error: Exception) -> DirectRoute:
    def answer(request: DirectRequest) -> DirectReply:
        raise error

    return route(answer)


def begun(tried: DirectRoute, asked: DirectRequest) -> DirectReply:
    """The reply, which does not wait for anything."""
    reply = tried.begin(asked)
    assert isinstance(reply, DirectReply)
    return reply


def test_of_headers_that_come_twice_the_last_counts() -> None:
    assert (HEAD.header(b"a"), HEAD.header(b"b"), HEAD.header(b"c")) == (b"3", b"2", None)


def test_a_request_has_one_id_that_is_made_when_it_is_asked_for() -> None:
    made: list[str] = []
    asked = DirectRequest(HEAD, b"", lambda: made.append("id") or "id")  # type: ignore[func-returns-value]
    assert made == []
    assert (asked.request_id, asked.request_id, made) == ("id", "id", ["id"])


def test_whoever_wants_to_know_is_told_that_the_client_has_left() -> None:
    heard: list[str] = []
    asked = request()
    asked.gone()
    asked.when_gone(lambda: heard.append("before"))
    asked.when_gone(lambda: heard.append("now"))
    asked.gone()
    assert heard == ["now"]


def test_a_scope_that_a_route_needs_must_be_there() -> None:
    assert begun(route(lambda asked: DirectReply(asked.body), Scope.VIEW), request()) == DirectReply(b"body")
    assert begun(route(lambda asked: DirectReply(asked.body)), request(frozenset())) == DirectReply(b"body")
    refused = begun(route(lambda asked: DirectReply(asked.body), Scope.PRODUCE), request())
    assert (refused.status, json.loads(refused.body)["error"]) == (
        403,
        {"code": "forbidden", "message": "the token does not have the scope produce", "request_id": "first"},
    )


@pytest.mark.parametrize(
    "error,status,headers",
    [
        (ConflictError("taken"), 409, ()),
        (LimitError("full", retry_after_seconds=2.5), 429, ((b"retry-after", b"3"),)),
        (MethodError("no", allowed=("GET", "PUT")), 405, ((b"allow", b"GET, PUT"),)),
        (UnauthorizedError("who"), 401, ((b"www-authenticate", b"Bearer"),)),
    ],
)
def test_an_error_is_told_with_its_status_and_headers(error: ConflictError, status: int, headers: Any, caplog: pytest.LogCaptureFixture) -> None:
    refused = begun(raising(error), request())
    assert (refused.status, refused.headers, refused.content_type) == (status, headers, b"application/json")
    assert json.loads(refused.body) == {"error": {"code": error.code, "message": str(error), "request_id": "first"}}
    assert caplog.records == []


def test_an_error_of_ours_is_in_the_log_under_the_id_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    for error, status in ((StoreError("the disk is gone"), 503), (InvariantError("two and two are five"), 500)):
        refused = begun(raising(error), request())
        assert (refused.status, json.loads(refused.body)["error"]["request_id"]) == (status, "first")
    broken = begun(raising(KeyError("secret")), request())
    assert (broken.status, b"secret" in broken.body, json.loads(broken.body)["error"]["request_id"]) == (500, False, "first")
    lines = ["request first: the disk is gone", "request first: two and two are five", "request first failed"]
    assert [record.getMessage() for record in caplog.records] == lines
    assert caplog.records[-1].exc_info is not None


def test_a_route_may_refuse_in_a_shape_of_its_own() -> None:
    shaped = route(lambda asked: DirectReply(b""), Scope.ADMIN, refused=lambda error, id: told(error, {"no": str(error), "id": id}))
    refused = begun(shaped, request())
    assert (refused.status, json.loads(refused.body)) == (403, {"no": "the token does not have the scope admin", "id": "first"})


async def by_asgi(tried: DirectRoute, messages: Sequence[dict[str, Any]], **scope: Any) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the same route behind a framework."""
    coming = list(messages)

    async def receive() -> dict[str, Any]:
        if not coming:
            await asyncio.Event().wait()
        return coming.pop(0)

    asked = {"type": "http", "method": "POST", "path": "/runs/a", "headers": [(b"x", b"1")], "path_params": {"run": "a"}, **scope}
    response = await tried.endpoint(Request(asked, receive))
    return response.status_code, dict(response.headers), bytes(response.body)


BODY = [{"type": "http.request", "body": b"abc", "more_body": False}]


async def test_a_function_is_told_the_same_behind_a_framework() -> None:
    seen: list[DirectRequest] = []

    def answer(asked: DirectRequest) -> DirectReply:
        seen.append(asked)
        return DirectReply(b"{}", 201, b"text/plain", ((b"x-more", b"yes"),))

    state = {"scopes": frozenset({Scope.VIEW}), "request_id": "r7"}
    status, headers, body = await by_asgi(route(answer, Scope.VIEW), BODY, query_string=b"q=1", state=state)
    assert (status, headers, body) == (201, {"content-type": "text/plain", "x-more": "yes", "content-length": "2"}, b"{}")
    (asked,) = seen
    assert (asked.body, asked.request_id) == (b"abc", "r7")
    assert asked.head == Head(method="POST", path="/runs/a", query=b"q=1", params={"run": "a"}, headers=((b"x", b"1"),), scopes=frozenset({Scope.VIEW}))
    await by_asgi(route(answer), BODY)
    assert (seen[1].head.scopes, seen[1].head.query, seen[1].request_id) == (frozenset(Scope), b"", "")


async def test_an_answer_that_comes_later_may_fail_too() -> None:
    async def later(asked: DirectRequest) -> DirectReply:
        await asyncio.sleep(0)
        if asked.body == b"abc":
            raise ConflictError("taken")
        return DirectReply(asked.body)

    assert (await by_asgi(route(later), BODY))[0] == 409
    assert await by_asgi(route(later), [{**BODY[0], "body": b"x"}]) == (200, {"content-type": "application/json", "content-length": "1"}, b"x")


async def test_whoever_works_for_a_client_behind_a_framework_is_told_when_it_leaves() -> None:
    async def until_gone(asked: DirectRequest) -> DirectReply:
        left = asyncio.Event()
        asked.when_gone(left.set)
        await asyncio.wait_for(left.wait(), 10)
        return DirectReply(b"gone")

    more = [*BODY, {"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}]
    before = asyncio.all_tasks()
    assert (await by_asgi(route(until_gone), more))[2] == b"gone"

    heard: list[str] = []

    async def after_a_while(asked: DirectRequest) -> DirectReply:
        asked.when_gone(lambda: heard.append("gone"))
        for _ in range(5):
            await asyncio.sleep(0)
        return DirectReply(b"here")

    assert (await by_asgi(route(after_a_while), more[:-1]))[2] == b"here"
    await asyncio.sleep(0)
    assert heard == [], "the client is still there"
    assert asyncio.all_tasks() == before, "nobody looks after a client that was answered"
