"""Routes of those who make rollouts: groups, sessions, slots, rollouts, the journal of an episode."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock import ledger as law
from penstock.buffer import api
from penstock.buffer.core import Buffer, Pending
from penstock.buffer.intake import Intake
from penstock.buffer.routes.reading import (
    RUN,
    accepted,
    body_of,
    check_count,
    check_query,
    check_run,
    check_wait,
    content_type,
    form_of,
    id_of,
    query_number,
    run_of,
)
from penstock.buffer.service import BufferService
from penstock.errors import InputError, InvalidError, LimitError
from penstock.httpd import DirectReply, DirectRequest, Scope, msgpack_reply, reply
from penstock.httpd.direct import told
from penstock.httpd.operations import JSON, MSGPACK, Body, Operation, Query
from penstock.types import JournalEntry, Rollout, SessionRecord
from penstock.wire import check_id, decode_json, decode_msgpack, join_items, parse_json, split_items
from penstock.wire.refusals import ErrorFacts

MOST_SLOTS = 4096
"""Slots that one claim may ask for."""
MOST_MEMBERS = 65_536
"""Members that a group may have: each is a record."""
_AT_ONCE = 512
"""Rollouts that are decided, or members that are issued, without a pause: about 10 ms."""


async def _open_groups(service: BufferService, request: Request) -> Response:
    run, wanted = run_of(request), await body_of(request, api.OpenGroups)
    for group in wanted.groups:
        check_id(group.id, "id")
        check_id(group.environment, "environment")
        check_id(group.problem_id, "problem_id")
        check_count(group.size, "size", MOST_MEMBERS)
    opened = await service.repeated(
        lambda: _opened(service, run, wanted.groups), lambda answer: answer.waiting is None or answer.opened > 0, check_wait(wanted.wait_seconds)
    )
    return reply(opened)


async def _opened(service: BufferService, run: str, groups: Sequence[api.OpenGroup]) -> api.GroupsOpened:
    """Open as many as there is credit for now."""
    decided: list[Pending[law.Opened]] = []
    waiting, num_members = None, 0
    for group in groups:
        if num_members >= _AT_ONCE:
            num_members = 0
            await asyncio.sleep(0)
        num_members += group.size
        options = {field.name: getattr(group, field.name) for field in dataclasses.fields(group) if field.name != "id"}
        try:
            decided.append(service.decided(partial(Buffer.open_group, run=run, group_id=group.id, **options)))
        except LimitError as error:
            waiting = str(error)
            break
        except InputError:
            await service.settled()
            raise
    await check_run(service, run)
    answers = [await service.durable(pending) for pending in decided]
    return api.GroupsOpened(opened=len(answers), created=sum(answer.created for answer in answers), waiting=waiting)


async def _open_session(service: BufferService, request: Request) -> Response:
    run, wanted = run_of(request), await body_of(request, api.OpenSession)
    return reply(await service.told(lambda buffer: buffer.open_session(run, check_id(wanted.session, "session"), check_id(wanted.worker, "worker"))))


async def _beat(service: BufferService, request: Request) -> Response:
    run, session = run_of(request), id_of(request, "session")
    return reply(await service.looked(lambda buffer: buffer.beat(run, session)))


async def _claim(service: BufferService, request: Request) -> Response:
    run, session, wanted = run_of(request), id_of(request, "session"), await body_of(request, api.Claim)
    check_count(wanted.count, "count", MOST_SLOTS)
    slots = await service.polled(
        lambda buffer: buffer.claim(run, session, wanted.count, wanted.environments, number=wanted.number), bool, check_wait(wanted.wait_seconds)
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


async def _release_session(service: BufferService, request: Request) -> Response:
    run, session = run_of(request), id_of(request, "session")
    return reply(await service.told(lambda buffer: buffer.release(run, session)))


async def _write_rollouts(service: BufferService, request: DirectRequest) -> DirectReply:
    """Each rollout is answered on its own. The status tells of a refusal only if nothing at all was taken: then it is that of the first."""
    run, form = check_id(request.head.params["run"], "run"), form_of(request.head.header(b"content-type"))
    if not service.buffer.has(run):
        await check_run(service, run)
    came = await service.intakes.read(run, request.body, form)
    read = [intake for intake in came if not isinstance(intake, InputError)]
    decided: list[law.Accepted | InputError] = []
    # Others are heard between two parts of a large batch.
    for start in range(0, len(read) or 1, _AT_ONCE):
        answered = await service.told(partial(Buffer.accept_all, run=run, writes=read[start : start + _AT_ONCE]))
        decided.extend(answered)
    left = iter(decided)
    outcomes = [intake if isinstance(intake, InputError) else next(left) for intake in came]
    answers = tuple([_written(intake, outcome) for intake, outcome in zip(came, outcomes, strict=True)])
    first = next(iter(outcomes), None)
    if not isinstance(first, InputError) or not all(isinstance(outcome, InputError) for outcome in outcomes):
        return DirectReply(msgspec.json.encode(api.WrittenAll(rollouts=answers)))
    facts = ErrorFacts(code=first.code, message=str(first), request_id=request.request_id)
    return told(first, api.WrittenNone(error=facts, rollouts=answers))


def _written(intake: Intake | InputError, outcome: law.Accepted | InputError) -> api.Written:
    if isinstance(outcome, InputError):
        return api.Written(uid=None if isinstance(intake, InputError) else intake[0].uid, code=outcome.code, message=str(outcome))
    rollout = outcome.rollout
    return api.Written(uid=rollout.uid, digest=rollout.digest, duplicate=outcome.duplicate, stale=rollout.stale)


async def _append_journal(service: BufferService, request: Request) -> Response:
    run, episode = run_of(request), id_of(request, "episode")
    first = query_number(request, "index")
    check_query(request, _INDEX)
    items = split_items(await request.body(), content_type(request))
    if not items:
        await check_run(service, run)
        known = len(service.buffer.store.journal(run, episode))
        await service.settled()
        if first > known:
            raise InvalidError(f"index: the journal of {episode} has {known} entries, so the next is {known}, not {first}")
        return reply(api.JournalLength(entries=known))
    entries = [JournalEntry(run=run, episode=episode, index=first + place, body=item) for place, item in enumerate(items)]
    lengths = await service.told(lambda buffer: buffer.append_journal(run, entries))
    return reply(api.JournalLength(entries=lengths[episode]))


async def _append_journals(service: BufferService, request: DirectRequest) -> DirectReply:
    """All of them or none: whoever is refused asks for each alone to learn which."""
    run, form = check_id(request.head.params["run"], "run"), form_of(request.head.header(b"content-type"))
    if not service.buffer.has(run):
        await check_run(service, run)
    decode = decode_json if form == "json" else decode_msgpack
    entries = [decode(item, JournalEntry) for item in split_items(request.body, form)]
    for entry in entries:
        if entry.run != run:
            raise InvalidError(f"run: an entry for run {entry.run!r} was sent to run {run!r}")
        check_id(entry.episode, "episode")
    await service.told(lambda buffer: buffer.append_journal(run, entries))
    return DirectReply(msgspec.json.encode(api.JournalLength(entries=len(entries))))


async def _journal(service: BufferService, request: Request) -> Response:
    run, episode, form = run_of(request), id_of(request, "episode"), accepted(request, "msgpack", "json")
    await check_run(service, run)
    entries = await asyncio.to_thread(service.buffer.store.journal, run, episode)
    # The last of them may have been on their way to the disk.
    await service.settled()
    if form == "msgpack":
        return msgpack_reply(join_items([entry.body for entry in entries]))
    for entry in entries:
        try:
            parse_json(entry.body)
        except InputError:
            raise InvalidError(f"accept: entry {entry.index} of the journal of {episode} is not JSON; ask for application/msgpack") from None
    return Response(b"[" + b",".join([entry.body for entry in entries]) + b"]", media_type=JSON)


_SESSION = RUN + "/sessions/{session}"
_INDEX = (Query(name="index", text="Place of the first entry in the journal.", kind="integer"),)

OPERATIONS: tuple[Operation[BufferService], ...] = (
    Operation(
        method="POST",
        path=RUN + "/groups",
        call=_open_groups,
        needs=Scope.PRODUCE,
        summary="Open groups, in order, as far as credits last; waits for the first if asked to. Opening one twice opens it once.",
        body=Body(noun=api.OpenGroups),
        answer=Body(noun=api.GroupsOpened),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=RUN + "/sessions",
        call=_open_session,
        needs=Scope.PRODUCE,
        summary="Start a worker's session, or renew it.",
        body=Body(noun=api.OpenSession),
        answer=Body(noun=SessionRecord),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=_SESSION + "/beat",
        call=_beat,
        needs=Scope.PRODUCE,
        summary="The worker is alive.",
        answer=Body(noun=SessionRecord),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=_SESSION + "/claim",
        call=_claim,
        needs=Scope.PRODUCE,
        summary="Slots to fill; waits for the first if asked to.",
        body=Body(noun=api.Claim),
        answer=Body(noun=api.Claimed),
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=_SESSION + "/release",
        call=_release_session,
        needs=Scope.PRODUCE,
        summary="The worker leaves; its slots are handed out again.",
        answer=Body(noun=SessionRecord),
    ),
    Operation(
        method="POST",
        path=RUN + "/rollouts",
        call=None,
        direct=_write_rollouts,
        needs=Scope.PRODUCE,
        summary="Store rollouts. Durable when it is answered; the same again changes nothing.",
        text=(
            "Each is answered on its own, in order. If every one was refused, the status is that of the first refusal, and the body has both `error` and"
            " `rollouts`. In msgpack the body is an array of byte strings, an encoded rollout each."
        ),
        body=Body(noun=Rollout, media=(JSON, MSGPACK), enveloped=True, several=True),
        answer=Body(noun=api.WrittenAll),
        refusal=api.WrittenNone,
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=RUN + "/journal/{episode}",
        call=_append_journal,
        needs=Scope.PRODUCE,
        summary="Append to the journal of an episode that is under way.",
        text="The same entries at the same index again change nothing.",
        body=Body(media=(JSON, MSGPACK), several=True),
        answer=Body(noun=api.JournalLength),
        query=_INDEX,
        refuses=(409,),
    ),
    Operation(
        method="POST",
        path=RUN + "/journals",
        call=None,
        direct=_append_journals,
        needs=Scope.PRODUCE,
        summary="Append to the journals of several episodes at once.",
        text="Each entry names its episode and its index. All are taken or none; the same again changes nothing. The answer says how many there were.",
        body=Body(noun=JournalEntry, media=(JSON, MSGPACK), enveloped=True, several=True),
        answer=Body(noun=api.JournalLength),
        refuses=(409,),
    ),
    Operation(
        method="GET",
        path=RUN + "/journal/{episode}",
        call=_journal,
        needs=Scope.PRODUCE,
        summary="The journal of an episode.",
        text="In msgpack an array of byte strings, an entry each; in JSON an array of entries, if each of them is JSON.",
        answer=Body(media=(MSGPACK, JSON)),
    ),
)
