"""The door of a server: an ASGI layer around an app that lets in who may come in, with what they may bring.

Checked in this order: Host and Origin, the token (but for `/livez`), compression, the size of the body (counted while it arrives, so that a chunked
one has a limit too). What the token allows stands in `scope["state"]["scopes"]`, where routes look (`httpd.scoped`). Whatever an app raises leaves
as an error with a request id; what we did not foresee is logged with it and told as 500.
"""

from __future__ import annotations

import ipaddress
import itertools
import logging
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from penstock.errors import ConfigError, ForbiddenError, InputError, LimitError, MediaTypeError, PenstockError, UnauthorizedError
from penstock.httpd.direct import Refused, refusal
from penstock.httpd.limits import Limits
from penstock.httpd.replies import InternalError
from penstock.httpd.tokens import ALL_SCOPES, Scope, Token, allowed

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/livez"})
"""Paths that need no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where a server listens and who may talk to it."""

    host: str = "127.0.0.1"
    """Address to bind. Anything but loopback needs a token."""
    token: str | None = field(default=None, repr=False)
    """What clients must send as `Authorization: Bearer ...` to do anything at all."""
    tokens: tuple[Token, ...] = ()
    """Further tokens, each with its scopes. Without any token, on loopback, everybody may do everything."""
    max_body_bytes: int = 16 * 1024 * 1024
    """Larger requests are refused with 413."""
    limits: Limits = field(default_factory=Limits)
    """What a connection may cost before its request is looked at."""

    def __post_init__(self) -> None:
        if not self.is_loopback and not self.known_tokens:
            raise ConfigError(f"host {self.host} is not loopback: a server that others can reach needs a token")

    @property
    def known_tokens(self) -> tuple[Token, ...]:
        """All tokens that are taken."""
        return (*self.tokens, Token(value=self.token)) if self.token else self.tokens

    @property
    def own_token(self) -> str | None:
        """A token that may do everything, to be sent to other servers of the same people; None if there is none."""
        return next((token.value for token in self.known_tokens if token.scopes == ALL_SCOPES), None)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return _is_loopback(self.host)


class Door:
    """Who is let in, by the headers alone: the checks that every lane of a server makes."""

    def __init__(self, access: Access) -> None:
        self.max_body_bytes = access.max_body_bytes
        self._is_loopback = access.is_loopback
        self._tokens = access.known_tokens
        self._life = secrets.token_hex(4)
        self._requests = itertools.count()

    def request_id(self) -> str:
        """A new one."""
        # Random once, then counted: asking the system for randomness costs more than all other checks together.
        return f"{self._life}{next(self._requests):08x}"

    def admitted(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> frozenset[Scope]:
        """What the request may do. Raises `InputError` if it may not even come in. The same headers always get the same answer."""
        given = {name.decode("latin1"): value.decode("latin1") for name, value in headers}
        if self._is_loopback and not _is_loopback(_host_name(given.get("host", "localhost"))):
            # A page in a browser can reach loopback under its own name; its Host tells it apart.
            raise ForbiddenError("this server answers to loopback names only")
        origin = given.get("origin")
        if origin is not None and origin.partition("://")[2] != given.get("host"):
            raise ForbiddenError("requests from other origins are refused")
        scopes = ALL_SCOPES if not self._tokens else allowed(given.get("authorization", ""), self._tokens)
        if not scopes and path not in OPEN_PATHS:
            unknown = "authorization" in given
            raise UnauthorizedError(f"{'this token is not known here' if unknown else 'a token is needed'}: Authorization: Bearer ...")
        if given.get("content-encoding", "identity") != "identity":
            raise MediaTypeError("compressed bodies are not read; send it plain")
        length = given.get("content-length", "0")
        # By its digits first: Python refuses to read a number of thousands of them.
        if length.isdecimal() and (len(length) > 15 or int(length) > self.max_body_bytes):
            raise self.too_large()
        return scopes

    def too_large(self) -> LimitError:
        """The refusal of a body that is over the limit."""
        return LimitError(f"the body is over the limit of {self.max_body_bytes} bytes", http_status=413)


class Guard:
    """Wraps an app. See the module's docstring. A server that has other lanes beside gives them the same `door`.

    `shapes`: how refusals look on paths that have a shape of their own.
    """

    def __init__(self, app: ASGIApp, access: Access, door: Door | None = None, shapes: Mapping[str, Refused] | None = None) -> None:
        self._app = app
        self._door = door or Door(access)
        self._shapes = shapes or {}

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._door.request_id()
        try:
            scopes = self._door.admitted(scope["path"], scope["headers"])
        except InputError as error:
            await _drain(receive, 4 * self._door.max_body_bytes)
            await self._refused(error, request_id, scope)(scope, receive, send)
            return
        scope["state"] = {**scope.get("state", {}), "request_id": request_id, "scopes": scopes}
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
            await self._refused(error, request_id, scope)(scope, receive, send)
        except ClientDisconnect:
            log.info("request %s: the client left before it had sent everything", request_id)
        except Exception:
            log.exception("request %s failed", request_id)
            if started:
                raise
            await self._refused(InternalError(), request_id, scope)(scope, receive, send)

    def _refused(self, error: PenstockError, request_id: str, scope: AsgiScope) -> Response:
        return self._shapes.get(scope["path"], refusal)(error, request_id).response()

    def _limited(self, receive: Receive) -> Receive:
        """`receive` that stops at the limit, whatever the headers said."""
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._door.max_body_bytes:
                raise self._door.too_large()
            return message

        return limited


async def _drain(receive: Receive, limit: int) -> None:
    """Read away what is being sent, up to a limit: a client that is cut off while it sends never sees why."""
    more = True
    while more and limit > 0:
        message = await receive()
        limit -= len(message.get("body", b""))
        more = message.get("more_body", False)


def _host_name(host: str) -> str:
    """The name in a `Host` header, without its port; empty if it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


@lru_cache(maxsize=256)
def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
