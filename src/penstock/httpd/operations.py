"""A server's routes as a table: what each is for, needs, takes and gives. The app and its OpenAPI document are made from the same lines."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from penstock.httpd.direct import Answer, DirectRequest, DirectRoute
from penstock.httpd.routing import ScopedRoute, routed, scoped
from penstock.httpd.tokens import Scope

Service = TypeVar("Service")
Handler = Callable[[Service, Request], Awaitable[Response]]
DirectHandler = Callable[[Service, DirectRequest], Answer]

JSON = "application/json"
MSGPACK = "application/msgpack"
NDJSON = "application/x-ndjson"


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a request brings, or an answer gives."""

    noun: Any = None
    """Type of the value in JSON; None: of no fixed form."""
    media: tuple[str, ...] = (JSON,)
    """Content types, the first being the usual one."""
    enveloped: bool = False
    """Whether the noun comes in an envelope with schema and kind."""
    several: bool = False
    """Whether it is an array of them."""
    text: str = ""
    """What the types do not tell."""
    required: bool = True
    loose: bool = False
    """Whether keys that the noun does not have are taken, and kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A parameter behind the question mark."""

    name: str
    text: str
    kind: Literal["string", "integer", "number"] = "string"
    several: bool = False
    choices: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[Service]):
    """One route."""

    method: Literal["GET", "POST"]
    path: str
    """With parameters as `{name}`, `{name:int}` or, for an id with slashes, `{name:path}`."""
    call: Handler[Service] | None
    """None: it is answered by `direct`; or a layer in front of the app answers it, and here it is only described."""
    needs: Scope | None
    summary: str
    """A sentence."""
    text: str = ""
    """What else there is to know."""
    body: Body | None = None
    answer: Body = Body()
    query: tuple[Query, ...] = ()
    refusal: Any = None
    """Type of a refusal that says more than others."""
    refuses: tuple[int, ...] = ()
    """Statuses beyond those that follow from its form."""
    direct: DirectHandler[Service] | None = None
    """Answers in place of `call`, by the lane of direct routes where a request is plain. For what is asked thousands of times a second."""

    @property
    def name(self) -> str:
        """Its name for machines."""
        call = self.call or self.direct
        return call.__name__.strip("_") if call is not None else re.sub(r"\W+", "_", self.path).strip("_") or "root"


def routes_of(operations: Sequence[Operation[Service]], service: Service) -> list[ScopedRoute]:
    """The routes of a table, answered by `service`."""
    routes = []
    for operation in operations:
        if operation.call is not None:
            routes.append(scoped(operation.path, _endpoint(operation.call, service), operation.needs, methods=[operation.method]))
        elif operation.direct is not None:
            routes.append(routed(_direct(operation, operation.direct, service)))
    return routes


def direct_of(operations: Sequence[Operation[Service]], service: Service) -> list[DirectRoute]:
    """Those of them that a server's lane answers: for `serve_app(..., direct=...)`."""
    return [_direct(operation, operation.direct, service) for operation in operations if operation.direct is not None]


def _direct(operation: Operation[Service], call: DirectHandler[Service], service: Service) -> DirectRoute:
    return DirectRoute(method=operation.method, path=operation.path, answer=partial(call, service), needs=operation.needs)


def _endpoint(call: Handler[Service], service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await call(service, request)

    return endpoint
