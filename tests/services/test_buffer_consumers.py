"""Outside consumers, enrichers and people who look, over the buffer's real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio
from tests.services.buffers import Process, group, rollout

from penstock.buffer.client import BufferClient, api
from penstock.errors import ConflictError, CorruptError, FencedError, ForbiddenError, UnknownError
from penstock.types import Annotation, CutRequest, Laws, LeaseRequest, LeaseState, RolloutStatus

_names = count()


@pytest_asyncio.fixture
async def client(process: Process) -> AsyncIterator[BufferClient]:
    async with BufferClient(process.url, f"run-{next(_names)}") as opened:
        await opened.open_run(Laws(credit_tokens=10**6), "0" * 32)
        yield opened


async def fill(client: BufferClient, *indices: int) -> None:
    """Groups of two that are complete."""
    for index in indices:
        await client.open_groups([group(index)])
        answers = await client.write([rollout(f"s/0/{index}", member, run=client.run) for member in range(2)])
        assert [answer.code for answer in answers] == [None, None]


async def states(client: BufferClient) -> dict[str, int]:
    return dict((await client.ledger()).balances[0].groups)


# Leases


async def test_a_lease_is_taken_fetched_and_settled_and_each_may_be_asked_twice(client: BufferClient) -> None:
    await fill(client, 0, 1, 2)
    for _ in range(2):
        reply = await client.take_lease("one", "trainer", LeaseRequest(groups=2))
        assert reply.lease is not None
        assert [found.id for found in reply.lease.groups] == ["s/0/0", "s/0/1"]
    assert await states(client) == {"bound": 2, "ready": 1}
    for _ in range(2):
        groups = await client.lease_groups(reply.lease)
        assert [[member.rollout_uid for member in found.rollouts] for found in groups] == [["s/0/0:0:0", "s/0/0:1:0"], ["s/0/1:0:0", "s/0/1:1:0"]]
    renewed = await client.renew_lease("one", "trainer", seconds=100)
    assert renewed.expires_at > reply.lease.expires_at
    for _ in range(2):
        assert (await client.settle_lease("one", "trainer")).state is LeaseState.SETTLED
    assert await states(client) == {"spent": 2, "ready": 1}
    assert len(await client.lease_groups(await client.lease("one"))) == 2


async def test_a_group_that_is_damaged_hides_no_other_of_its_lease(process: Process, client: BufferClient, caplog: pytest.LogCaptureFixture) -> None:
    await fill(client, 0, 1, 2)
    reply = await client.take_lease("one", "trainer")
    assert reply.lease is not None
    with sqlite3.connect(process.directory / "store.sqlite") as store:
        store.execute("UPDATE payloads SET body = zeroblob(length(body)) WHERE run = ? AND uid = 's/0/1:1:0'", (client.run,))
    assert [found.id for found in await client.lease_groups(reply.lease)] == ["s/0/0", "s/0/2"]
    assert "group s/0/1 is left out: payload 's/0/1:1:0'" in caplog.text
    path = f"/v1/runs/{client.run}/leases/one/groups?consumer=trainer"
    listed = json.loads(process.ask("GET", path, None, {"Accept": "application/json"})[1])
    assert [(found["group"]["id"], len(found["rollouts"]), found["damaged"] is None) for found in listed] == [
        ("s/0/0", 2, True),
        ("s/0/1", 0, False),
        ("s/0/2", 2, True),
    ]
    # Asking again would not mend it: the client says so at once.
    with pytest.raises(CorruptError, match="fails its checksum"):
        await client.rollout("s/0/1:1:0")


async def test_a_group_whose_record_is_damaged_hides_no_other_of_its_lease(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = Process(tmp_path)
    try:
        async with BufferClient(process.url, "run") as client:
            await client.open_run(Laws(credit_tokens=10**6), "0" * 32)
            await fill(client, *range(6))
            for lease in ("used", "unused"):
                reply = await client.take_lease(lease, "trainer", LeaseRequest(groups=3))
                assert reply.lease is not None
            process.kill()
            with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as store, store:
                store.execute("UPDATE groups SET body = zeroblob(length(body)) WHERE id IN ('s/0/1', 's/0/4')")
            process.start()
            for _ in range(2):
                assert (await client.settle_lease("used", "trainer")).state is LeaseState.SETTLED
                assert [found.id for found in await client.lease_groups(await client.lease("used"))] == ["s/0/0", "s/0/2"]
                listed = json.loads(process.ask("GET", "/v1/runs/run/leases/used/groups?consumer=trainer", None, {"Accept": "application/json"})[1])
                assert [(found["id"], found["group"] is None, len(found["rollouts"])) for found in listed] == [
                    ("s/0/0", False, 2),
                    ("s/0/1", True, 0),
                    ("s/0/2", False, 2),
                ]
                assert listed[1]["damaged"] == "group 's/0/1' of run 'run' fails its checksum"
                assert (await client.release_lease("unused", "trainer")).state is LeaseState.RELEASED
                # What has ended is in the store alone after another start.
                process.kill()
                process.start()
            assert "lease used: group s/0/1 is left out: group 's/0/1' of run 'run' fails its checksum" in caplog.text
            assert await states(client) == {"spent": 2, "ready": 2, "bound": 2}, "a damaged group counts as what it was"
            assert (await client.where("s/0/0")).lease is not None
            with pytest.raises(CorruptError, match="group 's/0/1'"):
                await client.where("s/0/1")
            looked = {finding.checked: finding.broken for finding in await client.verify()}
            assert looked["2 leased groups"] == ()
            assert [sentence for sentence in looked["2 damaged records set aside"] if "'s/0/1'" in sentence] != []
    finally:
        process.kill()


async def test_a_group_that_was_damaged_while_it_grew_is_dropped_and_told_when_its_buffer_starts(tmp_path: Path) -> None:
    process = Process(tmp_path)
    try:
        async with BufferClient(process.url, "run") as client:
            await client.open_run(Laws(credit_tokens=10**6), "0" * 32)
            await client.open_groups([group(0), group(1)])
            for index in range(2):
                (answer,) = await client.write([rollout(f"s/0/{index}", 0, run="run")])
                assert answer.code is None
            process.kill()
            with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as store, store:
                store.execute("UPDATE rollouts SET body = zeroblob(length(body)) WHERE uid = 's/0/0:0:0'")
            process.start()
            for _ in range(600):
                if "dropped(damaged)" in await states(client):
                    break
                await asyncio.sleep(0.1)
            assert await states(client) == {"open": 1, "dropped(damaged)": 1}
            ledger = await client.ledger()
            assert (ledger.imbalance, ledger.balances[0].members) == (0, {"accepted": 1, "pending": 1, "failed(group_dropped)": 2})
        assert "dropped, since a record of theirs is damaged: group s/0/0" in (tmp_path / "log").read_text()
    finally:
        process.kill()


async def test_the_groups_of_a_lease_come_as_json_too(process: Process, client: BufferClient) -> None:
    await fill(client, 0)
    await client.take_lease("one", "trainer")
    path = f"/v1/runs/{client.run}/leases/one/groups?consumer=trainer"
    (found,) = json.loads(process.ask("GET", path, None, {"Accept": "application/json"})[1])
    assert found["group"]["id"] == "s/0/0"
    assert [member["reward"] for member in found["rollouts"]] == [1.0, 1.0]
    assert found["rollouts"][0]["trace"]["segments"][1]["ids"] == [4, 5]


async def test_a_lease_of_somebody_else_or_one_that_is_over_is_refused(process: Process, client: BufferClient) -> None:
    await fill(client, 0)
    await client.take_lease("one", "trainer")
    with pytest.raises(ForbiddenError, match="not of thief"):
        await client.settle_lease("one", "thief")
    with pytest.raises(ForbiddenError):
        await client.take_lease("one", "thief")
    assert process.ask("GET", f"/v1/runs/{client.run}/leases/one/groups?consumer=thief")[0] == 403
    await client.release_lease("one", "trainer")
    await client.release_lease("one", "trainer")
    for late in (client.settle_lease("one", "trainer"), client.renew_lease("one", "trainer")):
        with pytest.raises(FencedError, match="released"):
            await late
    assert process.ask("GET", f"/v1/runs/{client.run}/leases/one/groups?consumer=trainer")[0] == 409
    with pytest.raises(UnknownError):
        await client.settle_lease("none", "trainer")
    assert await states(client) == {"ready": 1}


async def test_a_lease_that_is_not_renewed_goes_to_the_next_who_waits_and_its_holder_is_fenced(client: BufferClient) -> None:
    await fill(client, 0)
    await client.take_lease("one", "gone", LeaseRequest(seconds=0.1))
    reply = await client.take_lease("two", "here", wait_seconds=20)
    assert reply.lease is not None
    assert [found.id for found in reply.lease.groups] == ["s/0/0"]
    with pytest.raises(FencedError, match="expired"):
        await client.settle_lease("one", "gone")
    assert (await client.settle_lease("two", "here")).fence == 1 + (await client.lease("one")).fence


async def test_a_lease_waits_for_a_group_and_is_woken_by_the_write(client: BufferClient) -> None:
    assert "0 groups are ready" in str((await client.take_lease("one", "trainer", wait_seconds=0)).waiting)
    waiting = asyncio.create_task(client.take_lease("one", "trainer", LeaseRequest(items=4), wait_seconds=30))
    await fill(client, 0, 1)
    reply = await asyncio.wait_for(waiting, 10)
    assert reply.lease is not None
    assert len(reply.lease.groups) == 2


async def test_64_consumers_race_and_each_group_goes_to_one(client: BufferClient) -> None:
    await fill(client, *range(16))
    replies = await asyncio.gather(*(client.take_lease(f"lease-{number}", f"c{number}", LeaseRequest(groups=1), wait_seconds=0) for number in range(64)))
    taken = [found.id for reply in replies if reply.lease for found in reply.lease.groups]
    assert sorted(taken) == sorted(f"s/0/{index}" for index in range(16))
    term = (await client.take_term(api.TakeTerm(owner="learner", checkpoint=0))).term
    assert (await client.cut(0, term, CutRequest(groups_per_update=1), wait_seconds=0)).plan is None


async def test_64_writers_race_on_the_same_uids_and_each_is_stored_once(client: BufferClient) -> None:
    await client.open_groups([group(0)])
    both = [rollout("s/0/0", member, run=client.run) for member in range(2)]
    other = [rollout("s/0/0", member, run=client.run, reward=0.5) for member in range(2)]
    replies = await asyncio.gather(*(client.write(other if number % 2 else both) for number in range(64)))
    answers = [answer for reply in replies for answer in reply]
    for uid in ("s/0/0:0:0", "s/0/0:1:0"):
        assert len({answer.digest for answer in answers if answer.uid == uid and answer.code is None}) == 1
    assert sum(answer.code is None and not answer.duplicate for answer in answers) == 2
    assert {answer.code for answer in answers} == {None, "conflict"}
    found = (await client.ledger()).balances[0]
    assert (found.groups, found.members) == ({"ready": 1}, {"accepted": 2})


async def test_leases_survive_a_kill(process: Process, client: BufferClient) -> None:
    await fill(client, 0, 1)
    before = (await client.take_lease("one", "trainer", LeaseRequest(groups=1))).lease
    assert before is not None
    process.kill()
    process.start()
    after = (await client.take_lease("one", "trainer", LeaseRequest(groups=1))).lease
    assert after is not None
    assert (after.groups, after.fence) == (before.groups, before.fence)
    assert await states(client) == {"bound": 1, "ready": 1}
    await client.settle_lease("one", "trainer")
    assert await states(client) == {"spent": 1, "ready": 1}


# Enrichment


def note(client: BufferClient, uid: str, name: str, **facts: object) -> Annotation:
    return Annotation(run=client.run, rollout_uid=uid, name=name, **facts)  # type: ignore[arg-type]


async def test_missing_annotations_are_work_and_the_last_one_makes_the_group_ready(client: BufferClient) -> None:
    await client.open_run(Laws(credit_tokens=10**6, annotations=("judge", "reference")), "0" * 32)
    waiting = asyncio.create_task(client.take_work(api.TakeWork(lease="w1", consumer="enricher", count=10, names=("judge",), wait_seconds=30)))
    await fill(client, 0)
    lease = await asyncio.wait_for(waiting, 10)
    assert [(item.rollout_uid, item.missing) for item in lease.items] == [("s/0/0:0:0", ("judge",)), ("s/0/0:1:0", ("judge",))]
    again = await client.take_work(api.TakeWork(lease="w1", consumer="enricher", count=10, names=("judge",)))
    assert again.items == lease.items
    other = await client.take_work(api.TakeWork(lease="w2", consumer="scorer", count=1))
    assert [(item.rollout_uid, item.missing) for item in other.items] == [("s/0/0:0:0", ("reference",))]
    await client.renew_work("w1", "enricher")
    fetched = await client.rollout("s/0/0:0:0")
    assert fetched.reward == 1.0
    for uid in ("s/0/0:0:0", "s/0/0:1:0"):
        await client.annotate(note(client, uid, "judge", values={"score": 0.5}))
        await client.annotate(note(client, uid, "judge", values={"score": 0.5}))
    assert (await client.statistics()).work_missing == 2
    await client.annotate(note(client, "s/0/0:0:0", "reference"))
    assert await states(client) == {"complete": 1}
    await client.annotate(note(client, "s/0/0:1:0", "reference", failed="the scorer was out of memory"))
    assert await states(client) == {"ready": 1}
    assert (await client.take_work(api.TakeWork(lease="w3", consumer="enricher"))).items == ()
    assert await client.release_work("w1", "enricher") is True
    assert await client.release_work("w1", "enricher") is False


async def test_work_that_is_not_done_in_time_goes_to_the_next_and_a_late_result_is_taken(client: BufferClient) -> None:
    await client.open_run(Laws(credit_tokens=10**6, annotations=("judge",)), "0" * 32)
    await fill(client, 0)
    assert len((await client.take_work(api.TakeWork(lease="w1", consumer="slow", count=2, seconds=0.1))).items) == 2
    lease = await client.take_work(api.TakeWork(lease="w2", consumer="fast", count=2, wait_seconds=20))
    assert len(lease.items) == 2
    with pytest.raises(FencedError, match="over"):
        await client.renew_work("w1", "slow")
    with pytest.raises(ForbiddenError):
        await client.renew_work("w2", "slow")
    await client.annotate(note(client, "s/0/0:0:0", "judge", values={"by": "slow"}))
    with pytest.raises(ConflictError, match="other content"):
        await client.annotate(note(client, "s/0/0:0:0", "judge", values={"by": "fast"}))
    await client.annotate(note(client, "s/0/0:1:0", "judge", values={"by": "fast"}))
    assert await states(client) == {"ready": 1}


# Looking


async def test_where_tells_the_story_of_a_group_a_member_and_a_rollout(client: BufferClient) -> None:
    await client.open_groups([group(0)])
    await client.write([rollout("s/0/0", 0, run=client.run, reward=None, status=RolloutStatus.INFRA_ERROR, failure="the tool hung")])
    await client.write([rollout("s/0/0", 0, run=client.run, retry=1), rollout("s/0/0", 1, run=client.run)])
    term = (await client.take_term(api.TakeTerm(owner="learner", checkpoint=0))).term
    await client.cut(0, term, CutRequest(groups_per_update=1))
    await client.record(0, term, digest="1" * 32)
    await client.keep(1, "c" * 32, term)
    story = await client.where("s/0/0")
    assert (story.kind, story.group.state, [update.update for update in story.updates]) == ("group", "spent", [0])
    told = [event.what for event in story.events]
    assert [event.at for event in story.events] == sorted(event.at for event in story.events)
    for words in (
        "opened for problem p",
        "infra_error: the tool hung",
        "try 1 stored",
        "ready:",
        "cut into update 0",
        "version 1",
        "update_1 contains",
        "spent",
    ):
        assert any(words in sentence for sentence in told), (words, told)
    member = await client.where("s/0/0#0")
    assert (member.kind, [found.rollout.retry for found in member.members[0].tries]) == ("member", [0, 1])
    one = await client.where("s/0/0:0:1")
    assert (one.kind, [found.rollout.uid for found in one.members[0].tries]) == ("rollout", ["s/0/0:0:1"])
    for nothing in ("nobody", "s/0/0#7"):
        with pytest.raises(UnknownError):
            await client.where(nothing)


async def test_where_names_the_lease_and_what_is_missing(client: BufferClient) -> None:
    await fill(client, 0)
    await client.take_lease("one", "trainer")
    await client.settle_lease("one", "trainer")
    story = await client.where("s/0/0")
    assert story.lease is not None
    assert (story.lease.consumer, story.lease.state) == ("trainer", "settled")
    assert any("taken by trainer under lease one" in event.what for event in story.events)


async def test_an_export_streams_what_is_meant(client: BufferClient) -> None:
    await fill(client, 0, 1)
    await client.open_groups([group(2)])
    await client.write([rollout("s/0/2", 0, run=client.run, reward=0.25)])
    rows = [json.loads(line) async for line in client.export()]
    assert [row["uid"] for row in rows] == ["s/0/0:0:0", "s/0/0:1:0", "s/0/1:0:0", "s/0/1:1:0", "s/0/2:0:0"]
    assert rows[4]["rollout"]["trace"]["segments"][1]["ids"] == [4, 5]
    some = [json.loads(line)["uid"] async for line in client.export([("state", "open"), ("where", "reward<0.5")])]
    assert some == ["s/0/2:0:0"]
    assert [line async for line in client.export([("environment", "other")])] == []


async def test_statistics_say_how_groups_fare(client: BufferClient) -> None:
    await fill(client, 0)
    await client.open_groups([group(1)])
    (found,) = (await client.statistics()).environments
    assert (found.opened, found.under_way, found.became_ready, found.mean_ready_tokens) == (2, 2, 1, 7.0)
    assert found.oldest_open_seconds is not None
    assert found.oldest_open_seconds >= 0


async def test_a_write_of_which_nothing_is_taken_still_answers_for_each(client: BufferClient) -> None:
    answers = await client.write([rollout("s/0/8", 0, run=client.run), rollout("s/0/9", 0, run=client.run)])
    assert [(answer.uid, answer.code) for answer in answers] == [("s/0/8:0:0", "unknown"), ("s/0/9:0:0", "unknown")]
