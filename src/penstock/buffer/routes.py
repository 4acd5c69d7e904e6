"""The native HTTP API of the buffer. Each route reads a body, asks the service, and writes a body; `buffer/api.py` has their forms."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from penstock import ledger as law
from penstock.buffer import api
from penstock.buffer.core import Buffer, Pending
from penstock.buffer.intake import annotation_intake, rollout_intake
from penstock.buffer.service import BufferService
from penstock.buffer.status import ledger_reply, metrics_text, run_status
from penstock.errors import InputError, InvalidError, LimitError, UnknownError
from penstock.httpd import msgpack_reply, reply, router
from penstock.types import JournalEntry, Plan
from penstock.wire import ContentType, check_id, encode_msgpack, join_items, read_body, split_items

T = TypeVar("T")
Handler = Callable[[BufferService, Request], Awaitable[Response]]

MOST_SLOTS = 4096
"""Slots that one claim may ask for."""


def buffer_routes(service: BufferService) -> Router:
    """The app to put behind a guard."""
    run = "/v1/runs/{run}"
    update = run + "/updates/{update:int}"
    table: list[tuple[str, str, Handler]] = [
        ("GET", "/livez", _livez),
        ("GET", "/readyz", _readyz),
        ("GET", "/metrics", _metrics),
        ("GET", "/v1/runs", _runs),
        ("POST", run, _open_run),
        ("GET", run, _status),
        ("GET", run + "/ledger", _ledger),
        ("POST", run + "/groups", _open_groups),
        ("GET", run + "/groups/{group:path}", _group),
        ("POST", run + "/sessions", _open_session),
        ("POST", run + "/sessions/{session}/beat", _beat),
        ("POST", run + "/sessions/{session}/claim", _claim),
        ("POST", run + "/sessions/{session}/release", _release),
        ("POST", run + "/rollouts", _write),
        ("GET", run + "/rollouts/{uid:path}", _rollout),
        ("POST", run + "/annotations", _annotate),
        ("POST", run + "/journal/{episode}", _append_journal),
        ("GET", run + "/journal/{episode}", _journal),
        ("POST", run + "/term", _take_term),
        ("POST", run + "/term/renew", _renew_term),
        ("POST", update + "/cut", _cut),
        ("GET", update + "/plan", _plan),
        ("GET", update + "/groups", _fetch),
        ("POST", update + "/outcome", _record),
        ("POST", update + "/fork", _fork),
        ("GET", run + "/versions", _versions),
        ("GET", run + "/versions/newest", _newest),
        ("POST", run + "/versions/{version:int}/publish", _publish),
        ("POST", run + "/checkpoints/{update:int}/keep", _keep),
        ("POST", run + "/checkpoints/{update:int}/retire", _retire),
    ]
    return router([Route(path, _endpoint(service, handler), methods=[method]) for method, path, handler in table])


def _endpoint(service: BufferService, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await handler(service, request)

    return endpoint


def _run(request: Request) -> str:
    return check_id(request.path_params["run"], "run")


def _number(request: Request, name: str) -> int:
    value = int(request.path_params[name])
    if value >= 2**53:
        raise InvalidError(f"{name}: must fit in 53 bits")
    return value


async def _body(request: Request, noun: type[T]) -> T:
    return read_body(await request.body(), noun)


def _content_type(request: Request) -> ContentType:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind == "application/json":
        return "json"
    if kind in ("application/msgpack", "application/x-msgpack"):
        return "msgpack"
    raise InvalidError(f"content-type: {kind!r} is neither application/json nor application/msgpack")


# About the service


async def _livez(service: BufferService, request: Request) -> Response:
    return reply({"live": True})


async def _readyz(service: BufferService, request: Request) -> Response:
    await service.check()
    return reply(api.Ready(ready=True, details={"durable_write": "ok"}))


async def _metrics(service: BufferService, request: Request) -> Response:
    return Response(await service.looked(metrics_text), media_type="text/plain; version=0.0.4")


async def _runs(service: BufferService, request: Request) -> Response:
    return reply({"runs": await service.looked(Buffer.runs)})


# A run and what it holds


async def _open_run(service: BufferService, request: Request) -> Response:
    run, wanted = _run(request), await _body(request, api.OpenRun)
    await service.told(lambda buffer: buffer.open_run(run, wanted.laws, wanted.initial_digest))
    return reply(await service.looked(lambda buffer: run_status(buffer.ledger(run))))


async def _status(service: BufferService, request: Request) -> Response:
    run = _run(request)
    return reply(await service.looked(lambda buffer: run_status(buffer.ledger(run))))


async def _ledger(service: BufferService, request: Request) -> Response:
    run = _run(request)
    return reply(await service.looked(lambda buffer: ledger_reply(buffer.ledger(run))))


async def _open_groups(service: BufferService, request: Request) -> Response:
    run, wanted = _run(request), await _body(request, api.OpenGroups)
    decided: list[Pending[law.Opened]] = []
    waiting = None
    for group in wanted.groups:
        check_id(group.id, "id")
        check_id(group.environment, "environment")
        check_id(group.problem_id, "problem_id")
        options = {field.name: getattr(group, field.name) for field in dataclasses.fields(group) if field.name != "id"}
        try:
            decided.append(service.decided(partial(Buffer.open_group, run=run, group_id=group.id, **options)))
        except LimitError as error:
            waiting = str(error)
            break
        except InputError:
            await service.settled()
            raise
    answers = [await service.durable(pending) for pending in decided]
    return reply(api.GroupsOpened(opened=len(answers), created=sum(answer.created for answer in answers), waiting=waiting))


async def _group(service: BufferService, request: Request) -> Response:
    run, group_id = _run(request), check_id(request.path_params["group"], "group")
    store = service.buffer.store
    group = await service.looked(lambda buffer: buffer.ledger(run).find_group(store, group_id))
    if group is None:
        raise UnknownError(f"no group {group_id}")
    return reply(
        {"group": group, "members": store.members(run, group_id), "rollouts": store.rollouts(run, group_id), "annotations": store.annotations(run, group_id)}
    )


# Workers


async def _open_session(service: BufferService, request: Request) -> Response:
    run, wanted = _run(request), await _body(request, api.OpenSession)
    return reply(await service.told(lambda buffer: buffer.open_session(run, check_id(wanted.session, "session"), check_id(wanted.worker, "worker"))))


async def _beat(service: BufferService, request: Request) -> Response:
    run, session = _run(request), request.path_params["session"]
    return reply(await service.looked(lambda buffer: buffer.beat(run, session)))


async def _claim(service: BufferService, request: Request) -> Response:
    run, session, wanted = _run(request), request.path_params["session"], await _body(request, api.Claim)
    if not 1 <= wanted.count <= MOST_SLOTS:
        raise InvalidError(f"count: must be 1 to {MOST_SLOTS}, got {wanted.count}")
    slots = await service.polled(
        lambda buffer: buffer.claim(run, session, wanted.count, wanted.environments, number=wanted.number), bool, _wait(wanted.wait_seconds)
    )
    return reply(api.Claimed(slots=tuple(_slot(slot) for slot in slots)))


def _slot(slot: law.Slot) -> api.ClaimedSlot:
    group = slot.group
    return api.ClaimedSlot(
        group_id=group.id,
        environment=group.environment,
        problem_id=group.problem_id,
        purpose=group.purpose,
        member=slot.member,
        retry=slot.retry,
        seed=slot.seed,
    )


def _wait(seconds: float) -> float:
    if not 0 <= seconds <= 3600:
        raise InvalidError(f"wait_seconds: must be 0 to 3600, got {seconds}")
    return seconds


async def _release(service: BufferService, request: Request) -> Response:
    run, session = _run(request), request.path_params["session"]
    return reply(await service.told(lambda buffer: buffer.release(run, session)))


async def _write(service: BufferService, request: Request) -> Response:
    """Each rollout is answered on its own; the request fails as a whole only if it cannot be read or kept."""
    run, content_type = _run(request), _content_type(request)
    await service.looked(lambda buffer: buffer.ledger(run))
    decided = [_decide_write(service, run, body, content_type) for body in split_items(await request.body(), content_type)]
    await service.settled()
    return reply(api.WrittenAll(rollouts=tuple([await _written(service, answer) for answer in decided])))


def _decide_write(service: BufferService, run: str, body: bytes, content_type: ContentType) -> Pending[law.Accepted] | api.Written:
    uid = None
    try:
        rollout, payload = rollout_intake(run, body, content_type)
        uid = rollout.uid
        return service.decided(lambda buffer: buffer.accept(run, rollout, payload))
    except InputError as error:
        return api.Written(uid=uid, code=error.code, message=str(error))


async def _written(service: BufferService, answer: Pending[law.Accepted] | api.Written) -> api.Written:
    if isinstance(answer, api.Written):
        return answer
    accepted = await service.durable(answer)
    rollout = accepted.rollout
    return api.Written(uid=rollout.uid, digest=rollout.digest, duplicate=accepted.duplicate, stale=rollout.stale)


async def _rollout(service: BufferService, request: Request) -> Response:
    run, uid = _run(request), check_id(request.path_params["uid"], "uid")
    await service.looked(lambda buffer: buffer.ledger(run))
    payload = service.buffer.store.payload(run, uid)
    return Response(payload.body, media_type=f"application/{payload.content_type}")


async def _annotate(service: BufferService, request: Request) -> Response:
    run, content_type = _run(request), _content_type(request)
    annotation, payload = annotation_intake(run, await request.body(), content_type)
    done = await service.told(lambda buffer: buffer.annotate(run, annotation, payload))
    return reply({"uid": done.annotation.uid, "duplicate": done.duplicate})


async def _append_journal(service: BufferService, request: Request) -> Response:
    run, episode = _run(request), check_id(request.path_params["episode"], "episode")
    first = request.query_params.get("index", "0")
    if not (first.isdecimal() and len(first) <= 9):
        raise InvalidError(f"index: {first[:20]!r} is not a number of at most 9 digits")
    items = split_items(await request.body(), _content_type(request))
    known = len(service.buffer.store.journal(run, episode))
    if int(first) > known:
        raise InvalidError(f"index: the journal of {episode} has {known} entries, so the next is {known}, not {first}")
    entries = [JournalEntry(run=run, episode=episode, index=int(first) + place, body=item) for place, item in enumerate(items)]
    await service.told(lambda buffer: buffer.append_journal(run, entries))
    return reply({"entries": max(known, int(first) + len(items))})


async def _journal(service: BufferService, request: Request) -> Response:
    run, episode = _run(request), check_id(request.path_params["episode"], "episode")
    return msgpack_reply(join_items([entry.body for entry in service.buffer.store.journal(run, episode)]))


# The learner


async def _take_term(service: BufferService, request: Request) -> Response:
    run, wanted = _run(request), await _body(request, api.TakeTerm)
    owner = check_id(wanted.owner, "owner")
    return reply(await service.told(lambda buffer: buffer.take_term(run, owner, wanted.checkpoint, resume=wanted.resume, replaces=wanted.replaces)))


async def _renew_term(service: BufferService, request: Request) -> Response:
    run, wanted = _run(request), await _body(request, api.UnderTerm)
    return reply(await service.looked(lambda buffer: buffer.renew_term(run, wanted.term)))


async def _cut(service: BufferService, request: Request) -> Response:
    run, update, wanted = _run(request), _number(request, "update"), await _body(request, api.CutBody)
    answer = await service.polled(
        lambda buffer: buffer.cut(run, update, wanted.term, wanted.request), lambda found: isinstance(found, Plan), _wait(wanted.wait_seconds)
    )
    if isinstance(answer, Plan):
        return reply(api.CutReply(plan=answer, outcome=service.buffer.ledger(run).outcomes.get(update)))
    return reply(api.CutReply(waiting=answer.reason, environment=answer.environment))


async def _plan(service: BufferService, request: Request) -> Response:
    return reply(await _known_plan(service, request))


async def _known_plan(service: BufferService, request: Request) -> Plan:
    run, update = _run(request), _number(request, "update")
    plan = await service.looked(lambda buffer: buffer.ledger(run).plans.get(update) or buffer.store.plan(run, update))
    if plan is None or plan.void:
        raise UnknownError(f"update {update} was never cut")
    return plan


async def _fetch(service: BufferService, request: Request) -> Response:
    plan = await _known_plan(service, request)
    groups = [await service.looked(partial(Buffer.fetch, run=plan.run, group_id=group.id, digest=group.digest)) for group in plan.groups]
    return msgpack_reply(join_items([encode_msgpack(group) for group in groups]))


async def _record(service: BufferService, request: Request) -> Response:
    run, update, wanted = _run(request), _number(request, "update"), await _body(request, api.RecordBody)
    done = await service.told(lambda buffer: buffer.record(run, update, wanted.term, digest=wanted.digest, skipped=wanted.skipped))
    return reply(api.RecordReply(outcome=done.outcome, replayed=done.replayed, equal=done.equal))


async def _fork(service: BufferService, request: Request) -> Response:
    run, update, wanted = _run(request), _number(request, "update"), await _body(request, api.DigestBody)
    return reply(await service.told(lambda buffer: buffer.fork(run, update, wanted.term, wanted.digest)))


async def _versions(service: BufferService, request: Request) -> Response:
    run = _run(request)
    return reply({"versions": await service.looked(lambda buffer: list(buffer.ledger(run).versions.values()))})


async def _newest(service: BufferService, request: Request) -> Response:
    run = _run(request)
    ledger = await service.looked(lambda buffer: buffer.ledger(run))
    return reply(ledger.versions[ledger.newest_version])


async def _publish(service: BufferService, request: Request) -> Response:
    run, version, wanted = _run(request), _number(request, "version"), await _body(request, api.UnderTerm)
    return reply(await service.told(lambda buffer: buffer.publish(run, version, wanted.term)))


async def _keep(service: BufferService, request: Request) -> Response:
    run, update, wanted = _run(request), _number(request, "update"), await _body(request, api.DigestBody)
    return reply(await service.told(lambda buffer: buffer.keep(run, update, wanted.digest, wanted.term)))


async def _retire(service: BufferService, request: Request) -> Response:
    run, update, wanted = _run(request), _number(request, "update"), await _body(request, api.UnderTerm)
    return reply(await service.told(lambda buffer: buffer.retire(run, update, wanted.term)))
