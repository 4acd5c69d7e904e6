"""Routes of the learner: its term, plans and their groups, outcomes, versions, checkpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.buffer import api
from penstock.buffer.routes.reading import RUN, body_of, check_wait, number_of, run_of, stored_groups
from penstock.buffer.service import BufferService
from penstock.buffer.stored import StoredGroup
from penstock.errors import UnknownError
from penstock.httpd import Scope, reply
from penstock.httpd.operations import MSGPACK, Body, Operation
from penstock.types import CheckpointRecord, Plan, TermRecord, Version
from penstock.wire import check_id, encode_msgpack, items_head, packed_item


async def _take_term(service: BufferService, request: Request) -> Response:
    run, wanted = run_of(request), await body_of(request, api.TakeTerm)
    owner = check_id(wanted.owner, "owner")
    # The term of another may be over only because nobody could be heard.
    service.catch_up()
    return reply(await service.told(lambda buffer: buffer.take_term(run, owner, wanted.checkpoint, resume=wanted.resume, replaces=wanted.replaces)))


async def _renew_term(service: BufferService, request: Request) -> Response:
    run, wanted = run_of(request), await body_of(request, api.UnderTerm)
    return reply(await service.looked(lambda buffer: buffer.renew_term(run, wanted.term)))


async def _cut(service: BufferService, request: Request) -> Response:
    run, update, wanted = run_of(request), number_of(request, "update"), await body_of(request, api.CutBody)
    answer = await service.polled(
        lambda buffer: buffer.cut(run, update, wanted.term, wanted.request), lambda found: isinstance(found, Plan), check_wait(wanted.wait_seconds)
    )
    if isinstance(answer, Plan):
        return reply(api.CutReply(plan=answer, outcome=service.buffer.ledger(run).outcomes.get(update)))
    return reply(api.CutReply(waiting=answer.reason, environment=answer.environment))


async def _plan(service: BufferService, request: Request) -> Response:
    return reply(await _known_plan(service, request))


async def _known_plan(service: BufferService, request: Request) -> Plan:
    run, update = run_of(request), number_of(request, "update")
    found = await service.looked(lambda buffer: buffer.ledger(run).plans.get(update) or buffer.store.plan(run, update))
    if found is None or found.void:
        raise UnknownError(f"update {update} was never cut")
    return found


async def _fetch(service: BufferService, request: Request) -> Response:
    known = await _known_plan(service, request)
    # All of them before the first is sent: one that is damaged refuses the whole.
    packed = [items_head(len(known.groups)), *await stored_groups(service, known.run, known.groups, _packed)]
    return StreamingResponse(_each(packed), headers={"content-length": str(sum(map(len, packed)))}, media_type=MSGPACK)


def _packed(group: StoredGroup) -> bytes:
    return packed_item(encode_msgpack(group))


async def _each(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _record(service: BufferService, request: Request) -> Response:
    run, update, wanted = run_of(request), number_of(request, "update"), await body_of(request, api.RecordBody)
    done = await service.told(lambda buffer: buffer.record(run, update, wanted.term, digest=wanted.digest, skipped=wanted.skipped))
    return reply(api.RecordReply(outcome=done.outcome, replayed=done.replayed, equal=done.equal))


async def _fork(service: BufferService, request: Request) -> Response:
    run, update, wanted = run_of(request), number_of(request, "update"), await body_of(request, api.DigestBody)
    return reply(await service.told(lambda buffer: buffer.fork(run, update, wanted.term, wanted.digest)))


async def _publish(service: BufferService, request: Request) -> Response:
    run, version, wanted = run_of(request), number_of(request, "version"), await body_of(request, api.UnderTerm)
    return reply(await service.told(lambda buffer: buffer.publish(run, version, wanted.term)))


async def _keep(service: BufferService, request: Request) -> Response:
    run, update, wanted = run_of(request), number_of(request, "update"), await body_of(request, api.DigestBody)
    return reply(await service.told(lambda buffer: buffer.keep(run, update, wanted.digest, wanted.term)))


async def _retire(service: BufferService, request: Request) -> Response:
    run, update, wanted = run_of(request), number_of(request, "update"), await body_of(request, api.UnderTerm)
    return reply(await service.told(lambda buffer: buffer.retire(run, update, wanted.term)))


_UPDATE = RUN + "/updates/{update:int}"
_CHECKPOINT = RUN + "/checkpoints/{update:int}"

OPERATIONS: tuple[Operation[BufferService], ...] = (
    Operation(
        method="POST",
        path=RUN + "/term",
        call=_take_term,
        needs=Scope.CONSUME,
        summary="A learner begins its life; older ones are fenced from now on.",
        body=Body(noun=api.TakeTerm),
        answer=Body(noun=TermRecord),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=RUN + "/term/renew",
        call=_renew_term,
        needs=Scope.CONSUME,
        summary="The learner is alive.",
        body=Body(noun=api.UnderTerm),
        answer=Body(noun=TermRecord),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=_UPDATE + "/cut",
        call=_cut,
        needs=Scope.CONSUME,
        summary="The plan of an update, made now or before; waits for groups if asked to.",
        body=Body(noun=api.CutBody),
        answer=Body(noun=api.CutReply),
        refuses=(409,),
    ),
    Operation(method="GET", path=_UPDATE + "/plan", call=_plan, needs=Scope.CONSUME, summary="A plan that was cut.", answer=Body(noun=Plan)),
    Operation(
        method="GET",
        path=_UPDATE + "/groups",
        call=_fetch,
        needs=Scope.CONSUME,
        summary="The groups of a plan: an array of byte strings, a stored group each, with its bytes as they were accepted.",
        answer=Body(media=(MSGPACK,)),
        refuses=(410,),
    ),
    Operation(
        method="POST",
        path=_UPDATE + "/outcome",
        call=_record,
        needs=Scope.CONSUME,
        summary="What came of a plan. Told again it is compared.",
        body=Body(noun=api.RecordBody),
        answer=Body(noun=api.RecordReply),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=_UPDATE + "/fork",
        call=_fork,
        needs=Scope.CONSUME,
        summary="Weights of a replay that differ from the recorded ones get a version of their own.",
        body=Body(noun=api.DigestBody),
        answer=Body(noun=Version),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=RUN + "/versions/{version:int}/publish",
        call=_publish,
        needs=Scope.CONSUME,
        summary="Every server was told of a version; credits come back.",
        body=Body(noun=api.UnderTerm),
        answer=Body(noun=Version),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=_CHECKPOINT + "/keep",
        call=_keep,
        needs=Scope.CONSUME,
        summary="Register a checkpoint: resume may start from it, and its groups are spent.",
        body=Body(noun=api.DigestBody),
        answer=Body(noun=CheckpointRecord),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=_CHECKPOINT + "/retire",
        call=_retire,
        needs=Scope.CONSUME,
        summary="Resume no longer starts from a checkpoint.",
        body=Body(noun=api.UnderTerm),
        answer=Body(noun=CheckpointRecord),
        refuses=(409,),
    ),
)
