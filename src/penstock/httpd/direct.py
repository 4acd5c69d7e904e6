"""Direct routes: plain functions from a request that has arrived whole to bytes, for paths that are asked thousands of times a second.

    async def take(service, request): ...                      # what a route of Starlette is
    def take(request: DirectRequest) -> DirectReply: ...       # what a direct one is; it may also give a future of its reply

A server that is given direct routes (`serve_app(..., direct=...)`) answers plain requests for them in its lane (`httpd.lane`), without a task, an
ASGI cycle or a framework. The same function answers everything else for its path, through `endpoint`: a chunked body, `Expect`, a connection that is
to be closed. So there is one way to write a route, and what a client sees does not depend on the lane it came by.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from penstock.errors import ForbiddenError, PenstockError
from penstock.httpd.replies import InternalError, error_body, error_headers
from penstock.httpd.tokens import ALL_SCOPES, Scope
from penstock.types.frozen import quickly_made

log = logging.getLogger(__name__)

JSON_TYPE = b"application/json"


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What stands before the body of a request. Requests that look the same up to there share it."""

    method: str
    path: str
    query: bytes
    params: Mapping[str, Any]
    """Parts of the path that the route names."""
    headers: tuple[tuple[bytes, bytes], ...]
    """As they came, names in small letters."""
    scopes: frozenset[Scope]
    """What the token allows."""

    def header(self, name: bytes) -> bytes | None:
        """The value of a header, by its name in small letters; the last one if there are several."""
        return next((value for known, value in reversed(self.headers) if known == name), None)


class DirectRequest:
    """A request that has arrived whole."""

    __slots__ = ("_id", "_make_id", "_when_gone", "body", "head")

    def __init__(self, head: Head, body: bytes, make_id: Callable[[], str]) -> None:
        self.head = head
        self.body = body
        self._make_id = make_id
        self._id: str | None = None
        self._when_gone: Callable[[], None] | None = None

    @property
    def request_id(self) -> str:
        """Under which the log has it. Made when it is first asked for: a request without an error needs none."""
        if self._id is None:
            self._id = self._make_id()
        return self._id

    def when_gone(self, call: Callable[[], None]) -> None:
        """Have `call` called if the client leaves before it is answered. One call: a later one takes its place."""
        self._when_gone = call

    def gone(self) -> None:
        """The client has left."""
        if self._when_gone is not None:
            self._when_gone()


@dataclass(slots=True)
class DirectReply:
    """An answer: its bytes, and what stands before them. (Not frozen: there is one for each request, and that would double its price.)"""

    body: bytes
    status: int = 200
    content_type: bytes = JSON_TYPE
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Names in small letters."""

    def response(self) -> Response:
        """The same for the ASGI lane."""
        # The type is a header like others: given as the type, the framework would add to it.
        headers = {name.decode("latin1"): value.decode("latin1") for name, value in ((b"content-type", self.content_type), *self.headers)}
        return Response(self.body, self.status, headers)


Answer = DirectReply | Awaitable[DirectReply]
Refused = Callable[[PenstockError, str], DirectReply]
"""An error, and the request's id, as a reply."""


def refusal(error: PenstockError, request_id: str) -> DirectReply:
    """An error in the shape of all native routes."""
    return told(error, error_body(error.code, str(error), request_id))


def told(error: PenstockError, body: object) -> DirectReply:
    """An error in a shape of its own, with the status and the headers that it always has."""
    headers = tuple((name.lower().encode(), value.encode()) for name, value in error_headers(error).items())
    return DirectReply(msgspec.json.encode(body), error.http_status, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectRoute:
    """A path and method with the function that answers them."""

    method: str
    path: str
    """With parameters as `{name}`, as in every other route."""
    answer: Callable[[DirectRequest], Answer]
    """Gives the reply or, if it must wait, a future of it; a coroutine costs a task. What it raises leaves as an error, as from every route."""
    needs: Scope | None
    refused: Refused = refusal
    """For routes that have a shape of their own."""
    takes: Callable[[bytes], bool] | None = None
    """Whether a request with this body is for the lane; None: all are. Others go on to ASGI, and to the app's route for them: for streamed replies."""

    def begin(self, request: DirectRequest) -> Answer:
        """Answer, or refuse. Raises nothing."""
        try:
            if self.needs is not None and self.needs not in request.head.scopes:
                raise ForbiddenError(f"the token does not have the scope {self.needs}")
            return self.answer(request)
        except Exception as error:
            return self.failed(error, request)

    def failed(self, error: BaseException, request: DirectRequest) -> DirectReply:
        """The reply to a request whose answer failed; logged if it is our fault."""
        if isinstance(error, PenstockError):
            if error.http_status >= 500:
                log.error("request %s: %s", request.request_id, error)
            return self.refused(error, request.request_id)
        log.error("request %s failed", request.request_id, exc_info=error)
        return self.refused(InternalError(), request.request_id)

    async def endpoint(self, http: Request) -> Response:
        """Answer a request that came by the ASGI lane."""
        state = http.scope.get("state", {})
        head = Head(
            method=http.method,
            path=http.scope["path"],
            query=http.scope.get("query_string", b""),
            params=http.path_params,
            headers=tuple(http.scope["headers"]),
            scopes=state.get("scopes", ALL_SCOPES),
        )
        request = DirectRequest(head, await http.body(), lambda: str(state.get("request_id", "")))
        answer = self.begin(request)
        if not isinstance(answer, DirectReply):
            try:
                answer = await _watched(answer, request, http.receive)
            except Exception as error:
                answer = self.failed(error, request)
        return answer.response()


async def _watched(answer: Awaitable[DirectReply], request: DirectRequest, receive: Receive) -> DirectReply:
    """The reply; meanwhile, look whether the client is still there."""
    watching = asyncio.ensure_future(_tell_when_gone(request, receive))
    try:
        return await answer
    finally:
        watching.cancel()


async def _tell_when_gone(request: DirectRequest, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    request.gone()
