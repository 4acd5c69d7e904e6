"""Routes of outside consumers: whole groups under a lease, fetched, and then settled or given back."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.buffer import api
from penstock.buffer.core import Buffer
from penstock.buffer.exporting import annotation_json, rollout_json
from penstock.buffer.routes.reading import RUN, accepted, body_of, check_name, check_query, check_wait, id_of, run_of, stored_groups
from penstock.buffer.service import BufferService
from penstock.buffer.stored import GivenGroup, StoredGroup
from penstock.errors import CorruptError, FencedError, ForbiddenError, InvalidError, UnknownError
from penstock.httpd import Scope, reply
from penstock.httpd.operations import JSON, MSGPACK, Body, Operation, Query
from penstock.ledger.leases import find_lease
from penstock.types import GroupRecord, LeaseRecord, LeaseState
from penstock.wire import check_id, encode_msgpack, items_head, packed_item, write_body

log = logging.getLogger(__name__)


async def _take_lease(service: BufferService, request: Request) -> Response:
    run, wanted = run_of(request), await body_of(request, api.TakeLease)
    lease, consumer = check_name(wanted.lease, "lease"), check_id(wanted.consumer, "consumer")
    answer = await service.polled(
        lambda buffer: buffer.take_lease(run, lease, consumer, wanted.request), lambda found: isinstance(found, LeaseRecord), check_wait(wanted.wait_seconds)
    )
    return reply(api.LeaseReply(lease=answer) if isinstance(answer, LeaseRecord) else api.LeaseReply(waiting=answer.reason))


async def _lease(service: BufferService, request: Request) -> Response:
    return reply(await _known_lease(service, run_of(request), id_of(request, "lease")))


async def _lease_groups(service: BufferService, request: Request) -> Response:
    """Streams, a group at a time: a lease may hold more than there is room for."""
    run, name, form = run_of(request), id_of(request, "lease"), accepted(request, "msgpack", "json")
    check_query(request, _CONSUMER)
    lease = await _known_lease(service, run, name)
    consumer = request.query_params.get("consumer")
    if consumer is None:
        raise InvalidError("consumer: say who is asking")
    if consumer != lease.consumer:
        raise ForbiddenError(f"lease {name} is not of {consumer[:256]}")
    if lease.state not in (LeaseState.TAKEN, LeaseState.SETTLED):
        raise FencedError(f"lease {name} is over: it is {lease.state}")
    pieces = _packed(service, lease) if form == "msgpack" else _listed(service, lease)
    return StreamingResponse(pieces, media_type=f"application/{form}")


async def _known_lease(service: BufferService, run: str, name: str) -> LeaseRecord:
    lease = await service.looked(lambda buffer: find_lease(buffer.ledger(run), buffer.store, name))
    if lease is None:
        raise UnknownError(f"no lease {name}")
    return lease


async def _given(service: BufferService, lease: LeaseRecord) -> AsyncIterator[GivenGroup]:
    for planned in lease.groups:
        try:
            (given,) = await stored_groups(service, lease.run, [planned], _whole)
            yield given
        except (CorruptError, UnknownError) as error:
            # What one group has lost hides no other.
            log.warning("lease %s: group %s cannot be given: %s", lease.lease, planned.id, error)
            group = await service.looked(partial(_group, run=lease.run, group_id=planned.id))
            yield GivenGroup(id=planned.id, group=group, damaged=str(error))


def _whole(found: StoredGroup) -> GivenGroup:
    return GivenGroup(id=found.group.id, group=found.group, rollouts=found.rollouts, annotations=found.annotations)


def _group(buffer: Buffer, run: str, group_id: str) -> GroupRecord | None:
    """The record of a group of which something is damaged; None if that is it."""
    try:
        return buffer.ledger(run).find_group(buffer.store, group_id)
    except CorruptError:
        return None


async def _packed(service: BufferService, lease: LeaseRecord) -> AsyncIterator[bytes]:
    yield items_head(len(lease.groups))
    async for group in _given(service, lease):
        yield packed_item(encode_msgpack(group))


async def _listed(service: BufferService, lease: LeaseRecord) -> AsyncIterator[bytes]:
    before = b"["
    async for given in _given(service, lease):
        group = api.LeasedGroup(
            id=given.id,
            group=given.group,
            rollouts=tuple(rollout_json(payload) for _, payload in given.rollouts),
            annotations=tuple(annotation_json(payload) for _, payload in given.annotations),
            damaged=given.damaged,
        )
        yield before + write_body(group)
        before = b","
    yield b"[]" if before == b"[" else b"]"


async def _renew_lease(service: BufferService, request: Request) -> Response:
    run, lease, wanted = run_of(request), id_of(request, "lease"), await body_of(request, api.RenewLease)
    return reply(await service.looked(lambda buffer: buffer.renew_lease(run, lease, wanted.consumer, seconds=wanted.seconds)))


async def _settle_lease(service: BufferService, request: Request) -> Response:
    run, lease, wanted = run_of(request), id_of(request, "lease"), await body_of(request, api.Holder)
    return reply(await service.told(lambda buffer: buffer.settle_lease(run, lease, wanted.consumer)))


async def _release_lease(service: BufferService, request: Request) -> Response:
    run, lease, wanted = run_of(request), id_of(request, "lease"), await body_of(request, api.Holder)
    return reply(await service.told(lambda buffer: buffer.release_lease(run, lease, wanted.consumer)))


_LEASE = RUN + "/leases/{lease}"
_CONSUMER = (Query(name="consumer", text="Who is asking; must hold the lease.", required=True),)

OPERATIONS: tuple[Operation[BufferService], ...] = (
    Operation(
        method="POST",
        path=RUN + "/leases",
        call=_take_lease,
        needs=Scope.CONSUME,
        summary="Lease whole groups that are ready; waits for them if asked to.",
        text="Nobody else gets them until the lease is settled, given back, or not renewed in time. The same id again gives the same groups.",
        body=Body(noun=api.TakeLease),
        answer=Body(noun=api.LeaseReply),
        refuses=(409,),
    ),
    Operation(method="GET", path=_LEASE, call=_lease, needs=Scope.CONSUME, summary="How a lease stands.", answer=Body(noun=LeaseRecord)),
    Operation(
        method="GET",
        path=_LEASE + "/groups",
        call=_lease_groups,
        needs=Scope.CONSUME,
        summary="The groups of a lease, in its order.",
        text="In msgpack an array of byte strings, a stored group each, with its bytes as they were accepted; in JSON an array of groups."
        " One that cannot be had says why (`damaged`), and hides no other; its `group` is null if that is what is damaged.",
        answer=Body(noun=api.LeasedGroup, media=(MSGPACK, JSON), several=True),
        query=_CONSUMER,
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=_LEASE + "/renew",
        call=_renew_lease,
        needs=Scope.CONSUME,
        summary="Keep the groups for as long again.",
        body=Body(noun=api.RenewLease),
        answer=Body(noun=LeaseRecord),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=_LEASE + "/settle",
        call=_settle_lease,
        needs=Scope.CONSUME,
        summary="The groups were used: they are spent. Again is fine.",
        body=Body(noun=api.Holder),
        answer=Body(noun=LeaseRecord),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=_LEASE + "/release",
        call=_release_lease,
        needs=Scope.CONSUME,
        summary="Give the groups back: they are ready again. Again is fine.",
        body=Body(noun=api.Holder),
        answer=Body(noun=LeaseRecord),
        refuses=(409,),
    ),
)
