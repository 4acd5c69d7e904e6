"""Routes that look at single groups and rollouts, or at all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.buffer import api
from penstock.buffer.core import Buffer
from penstock.buffer.exporting import ExportRow, export_lines
from penstock.buffer.routes.reading import RUN, check_query, check_run, id_of, run_of
from penstock.buffer.selection import FIELDS, select
from penstock.buffer.service import BufferService
from penstock.buffer.story import Story
from penstock.buffer.telling import find, tell
from penstock.errors import UnknownError
from penstock.httpd import Scope, reply
from penstock.httpd.operations import JSON, MSGPACK, NDJSON, Body, Operation, Query
from penstock.types import GroupState, Purpose, RolloutStatus


async def _group(service: BufferService, request: Request) -> Response:
    run, group_id = run_of(request), id_of(request, "group")
    return reply(await service.looked(lambda buffer: _facts(buffer, run, group_id)))


def _facts(buffer: Buffer, run: str, group_id: str) -> api.GroupFacts:
    store = buffer.store
    found = buffer.ledger(run).find_group(store, group_id)
    if found is None:
        raise UnknownError(f"no group {group_id}")
    return api.GroupFacts(
        group=found, members=store.members(run, group_id), rollouts=store.rollouts(run, group_id), annotations=store.annotations(run, group_id)
    )


async def _rollout(service: BufferService, request: Request) -> Response:
    run, uid = run_of(request), id_of(request, "uid")
    await check_run(service, run)
    # It may have to be found in a file of the archive: others are answered meanwhile.
    payload = await asyncio.to_thread(service.buffer.store.payload, run, uid)
    return Response(payload.body, media_type=f"application/{payload.content_type}")


async def _where(service: BufferService, request: Request) -> Response:
    run, asked = run_of(request), request.path_params["id"]
    named = await service.looked(lambda buffer: find(buffer, run, asked))
    # It looks through all plans and leases: others are answered meanwhile.
    history = await asyncio.to_thread(service.buffer.store.history, run, named.group.id)
    return reply(await service.looked(lambda buffer: tell(buffer, run, asked, history)))


async def _export(service: BufferService, request: Request) -> Response:
    """Streams: the first lines leave while the last are still on disk."""
    run = run_of(request)
    check_query(request, EXPORT_QUERY)
    words = {query.name: request.query_params.getlist(query.name) for query in EXPORT_QUERY}
    selection = select(**words)
    await check_run(service, run)
    return StreamingResponse(_pieces(export_lines(service.buffer.store, run, selection)), media_type=NDJSON)


async def _pieces(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(next, lines, b""):
        yield piece


EXPORT_QUERY = (
    Query(name="environment", text="Only groups of this environment; may be repeated.", several=True),
    Query(name="state", text="Only groups in this state; may be repeated.", several=True, choices=tuple(GroupState)),
    Query(name="purpose", text="Only groups for this purpose; may be repeated.", several=True, choices=tuple(Purpose)),
    Query(name="status", text="Only rollouts that ended so; may be repeated.", several=True, choices=tuple(RolloutStatus)),
    Query(name="where", text=f"Only rollouts for which it holds, such as `reward>=0.5`; may be repeated. Fields: {', '.join(FIELDS)}.", several=True),
)

OPERATIONS: tuple[Operation[BufferService], ...] = (
    Operation(
        method="GET",
        path=RUN + "/where/{id:path}",
        call=_where,
        needs=Scope.VIEW,
        summary="The whole story of a group, a member or a rollout.",
        text="`id` is a group's id, a rollout's uid, or `<group>#<member>` (with the `#` as `%23`). Items are found by what they were written with, too.",
        answer=Body(noun=Story),
    ),
    Operation(
        method="GET",
        path=RUN + "/export",
        call=_export,
        needs=Scope.VIEW,
        summary="Stored rollouts, a line of JSON each.",
        text=f"Each line is an object with the fields {', '.join(ExportRow.__dataclass_fields__)}.",
        answer=Body(media=(NDJSON,)),
        query=EXPORT_QUERY,
    ),
    Operation(
        method="GET",
        path=RUN + "/groups/{group:path}",
        call=_group,
        needs=Scope.VIEW,
        summary="A group and all records that belong to it.",
        answer=Body(noun=api.GroupFacts),
    ),
    Operation(
        method="GET",
        path=RUN + "/rollouts/{uid:path}",
        call=_rollout,
        needs=Scope.VIEW,
        summary="A rollout's bytes as they were accepted.",
        answer=Body(media=(JSON, MSGPACK)),
        refuses=(410,),
    ),
)
