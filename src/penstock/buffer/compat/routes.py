"""The compatible routes, as a layer in front of the native ones. Every answer, also a refusal, has the shape `{success, message, data}`.

Writes are direct: what a framework does around a request costs more than the write itself. The others are plain ASGI.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from penstock.buffer.compat.hooks import Generators
from penstock.buffer.compat.reader import Batch
from penstock.buffer.compat.service import CompatService
from penstock.errors import InvalidError, LimitError, MethodError, PenstockError, UnknownError
from penstock.httpd import DirectReply, DirectRequest, DirectRoute, Scope, check_scope
from penstock.httpd.direct import Refused, told
from penstock.wire import check_id, parse_json

log = logging.getLogger(__name__)

WRITTEN = b'{"success":true,"message":"Data has been successfully written to buffer","data":{"data":'
NOTHING = "No data available to read"
_JSON = (b"content-type", b"application/json")
_encode = msgspec.json.Encoder().encode


class CompatRoutes:
    """Answers the paths of the seed's buffer; all others go to `app`."""

    def __init__(self, app: ASGIApp, compat: CompatService, generators: Generators | None = None) -> None:
        self._app = app
        self._compat = compat
        self._generators = generators
        self._writing = DirectRoute(method="POST", path="/buffer/write", answer=self._answer_write, needs=Scope.PRODUCE, refused=_refused)
        self._table: dict[str, tuple[str, Scope, Callable[[AsgiScope, Receive, Send], Awaitable[None]]]] = {
            "/buffer/write": ("POST", Scope.PRODUCE, self._write),
            "/get_rollout_data": ("POST", Scope.CONSUME, self._read),
            "/buffer/read": ("POST", Scope.CONSUME, self._read),
            "/buffer/peek": ("GET", Scope.VIEW, self._peek),
            "/buffer/stats": ("GET", Scope.VIEW, self._stats),
            "/start_rollout": ("POST", Scope.ADMIN, self._start_rollout),
            "/": ("GET", Scope.VIEW, self._root),
        }

    @property
    def direct(self) -> tuple[DirectRoute, ...]:
        """What is asked thousands of times a second, for the server's lane."""
        return (self._writing,)

    @property
    def shapes(self) -> dict[str, Refused]:
        """How a request is refused before it comes here: by its token, its size, its Host."""
        return dict.fromkeys(self._table, _refused)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        found = self._table.get(scope["path"]) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        method, needs, answer = found
        try:
            if scope["method"] != method and not (method == "GET" and scope["method"] == "HEAD"):
                raise MethodError(f"{scope['path']} is asked with {method}", allowed=(method,))
            check_scope(scope, needs)
            await answer(scope, receive, send)
        except PenstockError as error:
            await _refuse(error, scope, send)

    async def _write(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        answer = await self._writing.endpoint(Request(scope, receive, send))
        await answer(scope, receive, send)

    def _answer_write(self, request: DirectRequest) -> Awaitable[DirectReply]:
        return self._compat.writing(request.body, partial(_written, request.body))

    async def _read(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        asked = _asked(await _body(receive))
        read_id = asked.get("read_id")
        if read_id is not None:
            await _send_batch(send, await self._compat.reader.read_again(_read_id(read_id)), None)
            return
        batch_size = _batch_size(asked.get("batch_size"))
        await _send_batch(send, await self._compat.reader.read(batch_size), batch_size)

    async def _peek(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        given = parse_qs(scope.get("query_string", b"").decode("latin1")).get("batch_size", ["1"])[0]
        await _send_batch(send, await self._compat.reader.peek(_batch_size(given) or 1), None)

    async def _stats(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        stats = self._compat.stats()
        await self._compat.settled()
        await _send(send, 200, _encode([stats]))

    async def _start_rollout(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        payload = _asked(await _body(receive))
        if self._generators is None:
            raise UnknownError("this buffer runs no generators")
        settings = self._compat.prepared(payload)
        await self._generators.start(payload)
        await self._compat.use(settings)
        await _send(send, 200, b'{"message":"Rollout started"}')

    async def _root(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        await _send(send, 200, b'{"message":"Rollout Buffer Server is running"}')


class CutShortError(Exception):
    """An answer could not be sent to its end."""


async def _send_batch(send: Send, batch: Batch, batch_size: int | None) -> None:
    if batch.items is None:
        enough = batch.num_items == 0 or batch_size is None
        message = NOTHING if enough else f"Not enough data. Requested {batch_size} items but only {batch.num_items} available."
        await _send(send, 200, _encode({"success": False, "message": message, "data": {"data": [], "meta_info": batch.meta_info}}))
        return
    headers = [_JSON] if batch.read_id is None else [_JSON, (b"x-read-id", batch.read_id.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        async for part in _parts(batch):
            await send({"type": "http.response.body", "body": part, "more_body": True})
    except PenstockError as error:
        # Half of the answer is on its way: the connection is cut, and the client can ask again by the id that it has been told.
        raise CutShortError(f"read {batch.read_id}: {error}") from error
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _parts(batch: Batch) -> AsyncIterator[bytes]:
    """The reply piece by piece. What is known only at the end stands at the end."""
    assert batch.items is not None
    yield b'{"success":true,"message":%b,"data":{"data":[' % _encode(f"Successfully read {batch.num_items} items")
    before: list[bytes] = []
    async for groups in batch.items:
        if groups:
            yield b",".join(before + groups)
            # From now on a comma stands before what follows.
            before = [b""]
    meta = batch.meta_info | ({"damaged": batch.damaged} if batch.damaged else {})
    yield b'],"meta_info":%b}}' % _encode(meta)


def _written(body: bytes, num_known: int) -> DirectReply:
    # As the original, the reply repeats what was written; a list comes back as the list it was.
    echo = body if body.lstrip()[:1] == b"[" else b"[%b]" % body
    known = b'","duplicate":true}}' if num_known else b'"}}'
    return DirectReply(b'%b%b,"meta_info":"write to buffer%b' % (WRITTEN, echo, known))


def _refused(error: PenstockError, request_id: str) -> DirectReply:
    return told(error, _refusal(error, request_id))


def _refusal(error: PenstockError, request_id: str) -> dict[str, Any]:
    return {"success": False, "message": str(error), "data": None, "error": {"code": error.code, "message": str(error), "request_id": request_id}}


async def _refuse(error: PenstockError, scope: AsgiScope, send: Send) -> None:
    request_id = scope.get("state", {}).get("request_id", "")
    if error.http_status >= 500:
        log.error("request %s: %s", request_id, error)
    headers = {b"retry-after": str(math.ceil(error.retry_after_seconds)).encode()} if isinstance(error, LimitError) else {}
    if isinstance(error, MethodError):
        headers[b"allow"] = ", ".join(error.allowed).encode()
    await _send(send, error.http_status, _encode(_refusal(error, request_id)), headers)


async def _send(send: Send, status: int, body: bytes, headers: Mapping[bytes, bytes] | None = None) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [_JSON, length, *(headers or {}).items()]})
    await send({"type": "http.response.body", "body": body})


async def _body(receive: Receive) -> bytes:
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        whole: bytes = message.get("body", b"")
        return whole
    parts: list[bytes] = []
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
    raise ClientDisconnect


def _asked(body: bytes) -> dict[str, Any]:
    """The object in a body; an empty body asks for nothing in particular."""
    value = parse_json(body) if body.strip() else {}
    if not isinstance(value, dict):
        raise InvalidError("the body must be an object")
    return value


def _read_id(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidError("read_id: must be a text")
    return check_id(value, "read_id")


def _batch_size(value: Any) -> int | None:
    """Items that are asked for: a number, or text that is one. None for everything, which is also what 0 and less ask for."""
    if value is None:
        return None
    try:
        if isinstance(value, bool) or (isinstance(value, float) and value != int(value)):
            raise ValueError
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidError(f"batch_size: must be a whole number, got {str(value)[:80]!r}") from None
    return min(number, 2**53) if number > 0 else None
