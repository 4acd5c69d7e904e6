"""The native HTTP API of the buffer: a table of operations by subject, the app that answers them, and the document that describes them."""

from __future__ import annotations

from functools import cache
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Router

import penstock
from penstock.buffer.compat.generators.routes import OPERATIONS as GENERATORS
from penstock.buffer.routes import compatible, enriching, health, learning, leasing, looking, producing, runs, verifying
from penstock.buffer.service import BufferService
from penstock.httpd import Scope, reply, router
from penstock.httpd.openapi import openapi
from penstock.httpd.operations import Body, Operation, routes_of

_TEXT = """A durable service between those who make rollouts and those who train on them.

Bodies are JSON; rollouts, annotations and journals may be msgpack, with arrays as bytes. Everything that is answered with 200 is durable. Every request
may be sent twice: the second changes nothing. A refusal is `{"error": {"code", "message", "request_id"}}`. Paths that do not begin with `/v1` are
those of older clients, in their own shape."""


async def _document(service: BufferService, request: Request) -> Response:
    return reply(api_document())


OPERATIONS: tuple[Operation[BufferService], ...] = (
    *health.OPERATIONS,
    Operation(method="GET", path="/openapi.json", call=_document, needs=Scope.VIEW, summary="This document.", answer=Body()),
    *runs.OPERATIONS,
    *looking.OPERATIONS,
    *producing.OPERATIONS,
    *enriching.OPERATIONS,
    *learning.OPERATIONS,
    *leasing.OPERATIONS,
    *verifying.OPERATIONS,
)


@cache
def api_document() -> dict[str, Any]:
    """The OpenAPI document of the buffer."""
    described: tuple[Operation[Any], ...] = (*OPERATIONS, *compatible.OPERATIONS, *GENERATORS)
    return openapi(described, title="Penstock buffer", version=penstock.__version__, text=_TEXT)


def buffer_routes(service: BufferService, *further: BaseRoute) -> Router:
    """The app to put behind a guard; `further` routes come after the native ones."""
    return router([*routes_of(OPERATIONS, service), *further])
