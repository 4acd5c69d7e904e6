"""A buffer that is killed again and again under writers that retry and readers that ask again: nothing acknowledged is lost, doubled or mixed.

`PENSTOCK_KILLS=N` kills it N times. Each promise has a sabotage that breaks it inside the buffer's process; with it the same trial must fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.services.buffers import Process, rollout
from tests.services.sabotage import EARLY_ANSWERS, FORGOTTEN_READS, FORGOTTEN_UIDS, MIXED_INSTANCES, running

from penstock.buffer.client import BufferClient, api
from penstock.errors import PenstockError
from penstock.types import Laws, LeaseRequest

KILLS = int(os.environ.get("PENSTOCK_KILLS", "25"))
SIZE = 2
ACKS_BETWEEN_KILLS = 6
ASK_AGAIN_SECONDS = 0.1
"""Pause of those whom nobody answers. Asked more often, a buffer that starts would get less of the machine than those who wait for it."""

PATIENCE_SECONDS = 60.0
"""A buffer that runs and brings the trial no further for so long has failed. On a machine with much to do it gets more: see `undergo`."""
STARTS_OF_PATIENCE = 20


@dataclass
class Trial:
    """What writers were acknowledged and what readers were given, by API."""

    process: Process
    acknowledged: dict[str, Counter[str]] = field(default_factory=lambda: {"compatible": Counter(), "native": Counter()})
    given: dict[str, list[list[str]]] = field(default_factory=lambda: {"compatible": [], "native": []})
    """Groups as they came, each as the uids of its members."""
    killed: asyncio.Event = field(default_factory=asyncio.Event)
    """All kills are over: writers finish what they have begun."""
    written: asyncio.Event = field(default_factory=asyncio.Event)
    """All writers have finished: readers read to the end."""
    acked: asyncio.Event = field(default_factory=asyncio.Event)
    """It is time for the next kill."""
    read: asyncio.Event = field(default_factory=asyncio.Event)
    """A compatible read has given something: a kill may undo that."""
    refused: list[str] = field(default_factory=list)
    """Answers that no writer or reader should ever get."""

    def ack(self, kind: str, uid: str) -> None:
        self.acknowledged[kind][uid] += 1
        if sum(map(len, self.acknowledged.values())) % ACKS_BETWEEN_KILLS == 0:
            self.acked.set()

    def failures(self) -> list[str]:
        """Every promise that was broken."""
        found = list(self.refused)
        for kind, acknowledged in self.acknowledged.items():
            given = Counter(uid for group in self.given[kind] for uid in group)
            found += [f"{kind}: {uid} was acknowledged and lost" for uid in acknowledged if uid not in given]
            found += [f"{kind}: {uid} was given {times} times" for uid, times in given.items() if times > 1]
            found += [f"{kind}: {group} is not one whole group" for group in self.given[kind] if not _is_whole(group)]
        return found


def _is_whole(uids: list[str]) -> bool:
    return len(set(uids)) == SIZE and len({uid.rpartition(":")[0] for uid in uids}) == 1


async def post(session: aiohttp.ClientSession, trial: Trial, path: str, value: Any) -> dict[str, Any] | None:
    """The answer to a request; None if it was lost, or if the buffer could not answer now."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with session.post(trial.process.url + path, data=json.dumps(value).encode(), headers={"Content-Type": "application/json"}) as answer:
            if answer.status == 200:
                return dict(json.loads(await answer.read()))
            if answer.status != 503:
                raise AssertionError(await answer.text())
    await asyncio.sleep(ASK_AGAIN_SECONDS)
    return None


async def compatible_writer(trial: Trial, name: str) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        for number in count():
            if trial.killed.is_set():
                return
            for member in range(SIZE):
                uid = f"{name}-{number}:{member}"
                item = {"uid": uid, "instance_id": f"{name}-{number}", "messages": [], "reward": float(member)}
                # Some are sent twice on purpose: as after an answer that was lost.
                for _ in range(1 + (number % 3 == 0)):
                    while await post(session, trial, "/buffer/write", item) is None:
                        pass
                trial.ack("compatible", uid)


async def compatible_reader(trial: Trial) -> None:
    """Asks again for a read whose answer it did not get."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        seen: set[str] = set()
        while True:
            is_last = trial.written.is_set()
            reply = await post(session, trial, "/get_rollout_data", {})
            if reply is None:
                while (last := await _last_read(session, trial)) is None:
                    pass
                if last and last not in seen:
                    while (reply := await post(session, trial, "/get_rollout_data", {"read_id": last})) is None:
                        pass
            if reply is None or not reply["success"]:
                if reply is not None and is_last:
                    return
                await asyncio.sleep(0.01)
                continue
            seen.add(reply["data"]["meta_info"]["read_id"])
            # Groups come one after the other.
            uids = [item["uid"] for item in reply["data"]["data"]]
            trial.given["compatible"] += [uids[start : start + SIZE] for start in range(0, len(uids), SIZE)]
            trial.read.set()


async def _last_read(session: aiohttp.ClientSession, trial: Trial) -> str | None:
    """Id of the newest read, empty if there was none; None if nobody answers."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with session.get(trial.process.url + "/buffer/stats") as answer:
            if answer.status == 200:
                return json.loads(await answer.read())[0]["last_read_id"] or ""
    await asyncio.sleep(ASK_AGAIN_SECONDS)
    return None


def patient_client(trial: Trial) -> BufferClient:
    """One that goes on for as long as the trial does: a life of the buffer may be over before a client has noticed that it had begun."""
    return BufferClient(trial.process.url, "run", deadline_seconds=math.inf)


async def native_writer(trial: Trial, name: str) -> None:
    async with patient_client(trial) as client:
        for number in count():
            if trial.killed.is_set():
                return
            group_id = f"{name}/0/{number}"
            await client.open_groups([api.OpenGroup(id=group_id, environment="env", problem_id="p", size=SIZE, first_estimate=10)])
            rollouts = [rollout(group_id, member, uid=f"{group_id}:{member}") for member in range(SIZE)]
            for _ in range(1 + (number % 3 == 0)):
                answers = await client.write(rollouts)
                assert [answer.code for answer in answers] == [None] * SIZE, answers
            for answer in answers:
                trial.ack("native", str(answer.uid))


async def native_reader(trial: Trial) -> None:
    async with patient_client(trial) as client:
        for number in count():
            is_last = trial.written.is_set()
            reply = await client.take_lease(f"lease-{number}", "reader", LeaseRequest(groups=1), wait_seconds=0.1)
            if reply.lease is None:
                if is_last:
                    return
                continue
            groups = await client.lease_groups(reply.lease)
            await client.settle_lease(reply.lease.lease, "reader")
            trial.given["native"] += [[member.rollout_uid for member in found.rollouts] for found in groups]


async def noted(trial: Trial, life: Coroutine[Any, Any, None]) -> None:
    """A writer or reader that ends at a refusal is a failure of the trial, and does not end the others."""
    try:
        await life
    except (AssertionError, PenstockError) as error:
        trial.refused.append(f"refused: {error}")
        trial.acked.set()
        trial.read.set()


async def undergo(process: Process, kills: int) -> Trial:
    """8 writers and 2 readers on both APIs, `kills` kills, and then everything is read to the end.

    Each life of the buffer must bring the trial to its next kill, and the last one to its end, within a time that follows from how long a start takes.
    """
    trial = Trial(process)
    async with BufferClient(process.url, "run") as client:
        await client.open_run(Laws(credit_tokens=10**9), "0" * 32)
    patience_seconds = PATIENCE_SECONDS
    try:
        async with asyncio.timeout(patience_seconds) as patience, asyncio.TaskGroup() as tasks:
            for reader in (compatible_reader, native_reader):
                tasks.create_task(noted(trial, reader(trial)))
            writers = [tasks.create_task(noted(trial, write(trial, f"{number}"))) for number in range(4) for write in (compatible_writer, native_writer)]
            for _ in range(kills):
                trial.acked.clear()
                await trial.acked.wait()
                await trial.read.wait()
                process.kill()
                patience.reschedule(None)
                began = time.monotonic()
                await asyncio.to_thread(process.start)
                patience_seconds = max(patience_seconds, STARTS_OF_PATIENCE * (time.monotonic() - began))
                patience.reschedule(asyncio.get_running_loop().time() + patience_seconds)
            trial.killed.set()
            await asyncio.gather(*writers)
            trial.written.set()
    except TimeoutError:
        trial.refused.append(f"a buffer that runs has brought the trial no further for {patience_seconds:.0f} s")
    return trial


async def test_kills_under_writers_and_readers_lose_double_and_mix_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, monkeypatch) as process:
        trial = await undergo(process, KILLS)
        assert trial.failures() == []
        for run in ("run", "default"):
            ledger = process.get(f"/v1/runs/{run}/ledger")
            assert (ledger["imbalance"], set(ledger["balances"][0]["groups"])) == (0, {"spent"})


@pytest.mark.parametrize(
    ("bug", "sentence"),
    [
        (EARLY_ANSWERS, "was acknowledged and lost"),
        # A duplicate that fills a group keeps its sibling out, which is lost then.
        (FORGOTTEN_UIDS, "was acknowledged and lost"),
        (FORGOTTEN_READS, "was given 2 times"),
        (MIXED_INSTANCES, "is not one whole group"),
    ],
    ids=["early answers", "forgotten uids", "forgotten reads", "mixed instances"],
)
async def test_the_trial_sees_a_buffer_that_breaks_its_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str, sentence: str) -> None:
    with running(tmp_path, monkeypatch, bug) as process:
        failures = (await undergo(process, 1)).failures()
    assert any(sentence in failure for failure in failures), failures
