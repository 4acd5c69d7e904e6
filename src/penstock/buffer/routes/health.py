"""Routes about the service itself."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from penstock.buffer import api
from penstock.buffer.core import Buffer
from penstock.buffer.service import BufferService
from penstock.buffer.status import imbalance_in_turns, metrics_text
from penstock.httpd import Scope, reply
from penstock.httpd.operations import Body, Operation


async def _live(service: BufferService, request: Request) -> Response:
    return reply(api.Live(live=True))


async def _ready(service: BufferService, request: Request) -> Response:
    await service.check()
    return reply(api.Ready(ready=True, details={"durable_write": "ok"}))


async def _metrics(service: BufferService, request: Request) -> Response:
    imbalances = {run: await imbalance_in_turns(service, run) for run in service.buffer.runs()}
    return Response(await service.looked(lambda buffer: metrics_text(buffer, imbalances)), media_type="text/plain; version=0.0.4")


async def _runs(service: BufferService, request: Request) -> Response:
    return reply(api.Runs(runs=tuple(await service.looked(Buffer.runs))))


OPERATIONS: tuple[Operation[BufferService], ...] = (
    Operation(method="GET", path="/livez", call=_live, needs=None, summary="The process answers.", answer=Body(noun=api.Live)),
    Operation(
        method="GET",
        path="/readyz",
        call=_ready,
        needs=Scope.VIEW,
        summary="A durable write was made just now.",
        answer=Body(noun=api.Ready),
        refuses=(507,),
    ),
    Operation(
        method="GET",
        path="/metrics",
        call=_metrics,
        needs=Scope.VIEW,
        summary="Gauges of all runs, for Prometheus.",
        answer=Body(media=("text/plain",)),
    ),
    Operation(method="GET", path="/v1/runs", call=_runs, needs=Scope.VIEW, summary="Names of the runs.", answer=Body(noun=api.Runs)),
)
