"""The door of a server: an ASGI layer around an app that lets in who may come in, with what they may bring.

Checked in this order: Host and Origin, the token (but for `/livez`), compression, the size of the body (counted while it arrives, so that a chunked
one has a limit too). Whatever an app raises leaves as an error with a request id; what we did not foresee is logged with it and told as 500.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.routing import BaseRoute, Router
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from penstock.errors import ConfigError, LimitError, PenstockError, UnknownError
from penstock.httpd.replies import error_body, error_reply, reply

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/livez"})
"""Paths that need no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where a server listens and who may talk to it."""

    host: str = "127.0.0.1"
    """Address to bind. Anything but loopback needs a token."""
    token: str | None = None
    """What clients must send as `Authorization: Bearer ...`; None on loopback."""
    max_body_bytes: int = 16 * 1024 * 1024
    """Larger requests are refused with 413."""

    def __post_init__(self) -> None:
        if not self.is_loopback and not self.token:
            raise ConfigError(f"host {self.host} is not loopback: a server that others can reach needs a token")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return _is_loopback(self.host)


class Guard:
    """Wraps an app. See the module's docstring."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(8)
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        headers = {name.decode("latin1"): value.decode("latin1") for name, value in scope["headers"]}
        refusal = self._refusal(scope["path"], headers, request_id)
        if refusal is not None:
            await _drain(receive, 4 * self._access.max_body_bytes)
            await refusal(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, self._limited(receive), watched_send)
        except PenstockError as error:
            if started:
                raise
            if error.http_status >= 500:
                log.error("request %s: %s", request_id, error)
            await error_reply(error, request_id)(scope, receive, send)
        except Exception:
            log.exception("request %s failed", request_id)
            if started:
                raise
            await reply(error_body("internal", "this is our mistake; the log has it under the request id", request_id), 500)(scope, receive, send)

    def _refusal(self, path: str, headers: dict[str, str], request_id: str) -> Response | None:
        if self._access.is_loopback and not _is_loopback(urlsplit(f"//{headers.get('host', 'localhost')}").hostname or ""):
            # A page in a browser can reach loopback under its own name; its Host tells it apart.
            return reply(error_body("forbidden", "this server answers to loopback names only", request_id), 403)
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return reply(error_body("forbidden", "requests from other origins are refused", request_id), 403)
        if self._access.token is not None and path not in OPEN_PATHS:
            given = headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._access.token.encode()):
                return reply(error_body("unauthorized", "a token is needed: Authorization: Bearer ...", request_id), 401, {"WWW-Authenticate": "Bearer"})
        if headers.get("content-encoding", "identity") != "identity":
            return reply(error_body("encoding", "compressed bodies are not read; send it plain", request_id), 415)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._access.max_body_bytes:
            return error_reply(self._too_large(), request_id)
        return None

    def _limited(self, receive: Receive) -> Receive:
        """`receive` that stops at the limit, whatever the headers said."""
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._access.max_body_bytes:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> LimitError:
        return LimitError(f"the body is over the limit of {self._access.max_body_bytes} bytes", http_status=413)


async def _drain(receive: Receive, limit: int) -> None:
    """Read away what is being sent, up to a limit: a client that is cut off while it sends never sees why."""
    more = True
    while more and limit > 0:
        message = await receive()
        limit -= len(message.get("body", b""))
        more = message.get("more_body", False)


def router(routes: Sequence[BaseRoute], lifespan: Lifespan[Any] | None = None) -> Router:
    """An app of `routes` to put behind a `Guard`. (A `Starlette` would answer 500 for every error before the guard sees it.)"""
    return Router(routes, default=_no_such_path, lifespan=lifespan)


async def _no_such_path(scope: Scope, receive: Receive, send: Send) -> None:
    raise UnknownError(f"no path {scope['path'][:200]!r} for {scope['method']}")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
