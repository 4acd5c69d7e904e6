"""Routes about a run as a whole."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from penstock.buffer import api
from penstock.buffer.routes.reading import RUN, body_of, run_of
from penstock.buffer.service import BufferService
from penstock.buffer.status import imbalance_in_turns, ledger_reply, run_status
from penstock.buffer.status import statistics as statistics_of
from penstock.httpd import Scope, reply
from penstock.httpd.operations import Body, Operation
from penstock.types import Version


async def _open_run(service: BufferService, request: Request) -> Response:
    run, wanted = run_of(request), await body_of(request, api.OpenRun)
    await service.told(lambda buffer: buffer.open_run(run, wanted.laws, wanted.initial_digest))
    return await _status(service, request)


async def _status(service: BufferService, request: Request) -> Response:
    run = run_of(request)
    imbalance = await imbalance_in_turns(service, run)
    return reply(await service.looked(lambda buffer: run_status(buffer.ledger(run), imbalance)))


async def _ledger(service: BufferService, request: Request) -> Response:
    run = run_of(request)
    imbalance = await imbalance_in_turns(service, run)
    return reply(await service.looked(lambda buffer: ledger_reply(buffer.ledger(run), imbalance)))


async def _statistics(service: BufferService, request: Request) -> Response:
    run = run_of(request)
    return reply(await service.looked(lambda buffer: statistics_of(buffer.ledger(run), service.now())))


async def _versions(service: BufferService, request: Request) -> Response:
    run = run_of(request)
    return reply(api.Versions(versions=await service.looked(lambda buffer: tuple(buffer.ledger(run).versions.values()))))


async def _newest_version(service: BufferService, request: Request) -> Response:
    run = run_of(request)
    known = await service.looked(lambda buffer: buffer.ledger(run))
    return reply(known.versions[known.newest_version])


OPERATIONS: tuple[Operation[BufferService], ...] = (
    Operation(
        method="POST",
        path=RUN,
        call=_open_run,
        needs=Scope.ADMIN,
        summary="Open a run, or open it again with other laws.",
        text="A run opens with version 0, its initial weights; opened again it must name the same ones.",
        body=Body(noun=api.OpenRun),
        answer=Body(noun=api.RunStatus),
        refuses=(409,),
    ),
    Operation(method="GET", path=RUN, call=_status, needs=Scope.VIEW, summary="How a run stands.", answer=Body(noun=api.RunStatus)),
    Operation(
        method="GET",
        path=RUN + "/ledger",
        call=_ledger,
        needs=Scope.VIEW,
        summary="Where every group and member that was ever issued is.",
        answer=Body(noun=api.LedgerReply),
    ),
    Operation(method="GET", path=RUN + "/statistics", call=_statistics, needs=Scope.VIEW, summary="How a run fares.", answer=Body(noun=api.Statistics)),
    Operation(method="GET", path=RUN + "/versions", call=_versions, needs=Scope.VIEW, summary="All recorded weights.", answer=Body(noun=api.Versions)),
    Operation(
        method="GET",
        path=RUN + "/versions/newest",
        call=_newest_version,
        needs=Scope.VIEW,
        summary="The weights that servers should serve.",
        answer=Body(noun=Version),
    ),
)
