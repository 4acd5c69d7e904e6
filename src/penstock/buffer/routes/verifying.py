"""The route that has the buffer look whether it is sound."""

from __future__ import annotations

import asyncio
from weakref import WeakSet

from starlette.requests import Request
from starlette.responses import Response

from penstock.buffer.checks import check_store
from penstock.buffer.findings import Findings
from penstock.buffer.routes.reading import RUN, check_run, run_of
from penstock.buffer.service import BufferService
from penstock.buffer.store import SqliteStore
from penstock.errors import InvalidError, LimitError
from penstock.httpd import Scope, reply
from penstock.httpd.operations import Body, Operation

_busy: WeakSet[BufferService] = WeakSet()
"""Services that are being looked at."""


async def _verify(service: BufferService, request: Request) -> Response:
    """In a thread, on a copy of the store: it takes as long as reading everything does, and nobody waits for it but the one who asked."""
    run, store = run_of(request), service.buffer.store
    if not isinstance(store, SqliteStore):
        raise InvalidError("this buffer's store cannot be copied")
    if run not in store.damaged_runs():  # one whose own record is damaged is not there for anything else
        await check_run(service, run)
    if service in _busy:
        raise LimitError("the buffer is being verified already; ask again when that is done", http_status=503)
    _busy.add(service)
    try:
        findings = await asyncio.to_thread(check_store, store.path, run=run)
    finally:
        _busy.discard(service)
    return reply(Findings(findings=findings[run]))


OPERATIONS: tuple[Operation[BufferService], ...] = (
    Operation(
        method="GET",
        path=RUN + "/verify",
        call=_verify,
        needs=Scope.ADMIN,
        summary="Check everything that is stored of a run against its digests, records and laws.",
        text="Looks at a copy of the store as it is at one moment. Takes as long as reading all of it.",
        answer=Body(noun=Findings),
        refuses=(503,),
    ),
)
