"""Routes of those who find out more about stored rollouts: work to take, and annotations as its results."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from penstock.buffer import api
from penstock.buffer.intake import annotation_intake
from penstock.buffer.routes.reading import LONGEST_LEASE_SECONDS, RUN, body_of, check_count, check_name, check_seconds, check_wait, content_type, id_of, run_of
from penstock.buffer.service import BufferService
from penstock.httpd import Scope, reply
from penstock.httpd.operations import JSON, MSGPACK, Body, Operation
from penstock.ledger.work import WorkLease, WorkRequest
from penstock.types import Annotation
from penstock.wire import check_id

MOST_ITEMS = 1024
"""Items that one lease of work may hold."""


async def _take_work(service: BufferService, request: Request) -> Response:
    run, wanted = run_of(request), await body_of(request, api.TakeWork)
    asked = WorkRequest(
        lease=check_name(wanted.lease, "lease"),
        consumer=check_id(wanted.consumer, "consumer"),
        count=check_count(wanted.count, "count", MOST_ITEMS),
        names=wanted.names,
        environments=wanted.environments,
        seconds=check_seconds(wanted.seconds, "seconds", LONGEST_LEASE_SECONDS),
    )
    return reply(await service.polled(lambda buffer: service.work.take(buffer, run, asked), lambda lease: bool(lease.items), check_wait(wanted.wait_seconds)))


async def _renew_work(service: BufferService, request: Request) -> Response:
    run, lease, wanted = run_of(request), id_of(request, "lease"), await body_of(request, api.Holder)
    return reply(await service.looked(lambda buffer: service.work.renew(buffer, run, lease, wanted.consumer)))


async def _release_work(service: BufferService, request: Request) -> Response:
    run, lease, wanted = run_of(request), id_of(request, "lease"), await body_of(request, api.Holder)
    return reply(api.Released(released=await service.told(lambda buffer: service.work.release(buffer, run, lease, wanted.consumer))))


async def _annotate(service: BufferService, request: Request) -> Response:
    run, form = run_of(request), content_type(request)
    annotation, payload = annotation_intake(run, await request.body(), form)
    done = await service.told(lambda buffer: buffer.annotate(run, annotation, payload))
    return reply(api.AnnotationStored(uid=done.annotation.uid, duplicate=done.duplicate))


_WORK = RUN + "/enrichment"

OPERATIONS: tuple[Operation[BufferService], ...] = (
    Operation(
        method="POST",
        path=_WORK,
        call=_take_work,
        needs=Scope.PRODUCE,
        summary="Take rollouts whose annotations are missing; waits for the first if asked to.",
        text="Results are annotations, also failed ones. What is neither done nor renewed in time is handed out again.",
        body=Body(noun=api.TakeWork),
        answer=Body(noun=WorkLease),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=_WORK + "/{lease}/renew",
        call=_renew_work,
        needs=Scope.PRODUCE,
        summary="Keep the work for as long again.",
        body=Body(noun=api.Holder),
        answer=Body(noun=WorkLease),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=_WORK + "/{lease}/release",
        call=_release_work,
        needs=Scope.PRODUCE,
        summary="Give back what was not done.",
        body=Body(noun=api.Holder),
        answer=Body(noun=api.Released),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=RUN + "/annotations",
        call=_annotate,
        needs=Scope.PRODUCE,
        summary="Attach an annotation to a stored rollout. The same again changes nothing.",
        body=Body(noun=Annotation, media=(JSON, MSGPACK), enveloped=True),
        answer=Body(noun=api.AnnotationStored),
        refuses=(409,),
    ),
)
