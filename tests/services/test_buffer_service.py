"""The buffer's process over its real socket and file."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from penstock.buffer import api
from penstock.buffer.client import BufferClient
from penstock.errors import ConflictError, FencedError, UnknownError
from penstock.trace import Recorder
from penstock.types import CutRequest, Laws, Message, Rollout, RolloutStatus, Source, VersionRun
from penstock.wire import encode_json


class Process:
    """A buffer that can be killed and started again on the same directory and port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self.start()

    def start(self) -> None:
        port_file = self.directory / "port"
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "penstock.buffer", "--dir", str(self.directory), "--port", str(self.port), "--port-file", str(port_file)]
        self.child = subprocess.Popen(command, stderr=(self.directory / "log").open("ab"))
        deadline = time.monotonic() + 30
        while not port_file.exists():
            assert self.child.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self.port = int(port_file.read_text())

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    running = Process(tmp_path)
    yield running
    running.kill()


@pytest_asyncio.fixture
async def client(process: Process) -> AsyncIterator[BufferClient]:
    async with BufferClient(process.url, "run") as opened:
        await opened.open_run(Laws(), "0" * 32)
        yield opened


def rollout(group: str, member: int, *, uid: str | None = None, retry: int = 0, version: int = 0, reward: float | None = 1.0) -> Rollout:
    recorder = Recorder()
    recorder.open_message()
    recorder.append(np.array([1, 2, 3], np.int32), Source.ENV)
    recorder.close_message(Message(role="user", content="sort 31>"))
    recorder.open_message()
    runs = (VersionRun(policy="policy", version=version, count=2),)
    recorder.append(np.array([4, 5 + member], np.int32), Source.SAMPLED, logprobs=np.array([-0.5, -0.25], np.float32), versions=runs)
    recorder.close_message(Message(role="assistant", content="13"))
    return Rollout(
        run="run",
        environment="env",
        problem_id="p",
        group_id=group,
        member=member,
        retry=retry,
        rollout_uid=uid or f"{group}:{member}:{retry}",
        trace=recorder.trace(),
        status=RolloutStatus.OK,
        reward=reward,
    )


def group(index: int, size: int = 2) -> api.OpenGroup:
    return api.OpenGroup(id=f"s/0/{index}", environment="env", problem_id="p", size=size, first_estimate=10)


async def test_a_whole_update_goes_through(client: BufferClient) -> None:
    await client.open_groups([group(0)])
    await client.open_session("s1", "worker")
    slots = await client.claim("s1", 8)
    assert [(slot.group_id, slot.member, slot.retry) for slot in slots] == [("s/0/0", 0, 0), ("s/0/0", 1, 0)]
    written = await client.write([rollout(slot.group_id, slot.member) for slot in slots])
    assert [answer.code for answer in written] == [None, None]
    term = (await client.take_term(api.TakeTerm(owner="learner", checkpoint=0))).term
    reply = await client.cut(0, term, CutRequest(groups_per_update=1))
    assert reply.plan is not None
    (fetched,) = await client.fetch(reply.plan)
    assert [list(member.trace.segments[1].ids) for member in fetched.rollouts] == [[4, 5], [4, 6]]
    assert [member.reward for member in fetched.rollouts] == [1.0, 1.0]
    recorded = await client.record(0, term, digest="1" * 32)
    assert (recorded.outcome.version, recorded.replayed) == (1, False)
    await client.publish(1, term)
    await client.keep(1, "c" * 32, term)
    status = await client.status()
    assert (status.newest.version, status.live_version, status.next_update, status.imbalance) == (1, 1, 1, 0)
    assert status.environments["env"].groups == {"spent": 1}
    assert status.environments["env"].held_tokens == 0


async def test_a_cut_waits_for_a_group_and_is_woken_by_the_write(client: BufferClient) -> None:
    term = (await client.take_term(api.TakeTerm(owner="learner", checkpoint=0))).term
    assert (await client.cut(0, term, CutRequest(groups_per_update=1), wait_seconds=0)).waiting == "no ready group"
    waiting = asyncio.create_task(client.cut(0, term, CutRequest(groups_per_update=1), wait_seconds=30))
    await client.open_groups([group(0)])
    await client.write([rollout("s/0/0", 0), rollout("s/0/0", 1)])
    assert (await asyncio.wait_for(waiting, 10)).plan is not None


async def test_refusals_arrive_as_the_errors_they_are(client: BufferClient) -> None:
    with pytest.raises(FencedError, match="nobody"):
        await client.beat("nobody")
    with pytest.raises(UnknownError, match="never cut"):
        await client.plan(7)
    with pytest.raises(ConflictError, match="started from weights"):
        await client.open_run(Laws(), "f" * 32)
    answers = await client.write([rollout("s/0/9", 0)])
    assert answers[0].code == "unknown"


async def test_groups_are_opened_as_far_as_credits_last(client: BufferClient) -> None:
    await client.open_run(Laws(credit_tokens=25), "0" * 32)
    opened = await client.open_groups([group(index) for index in range(4)])
    assert (opened.opened, opened.created) == (2, 2)
    assert opened.waiting is not None
    again = await client.open_groups([group(0)])
    assert (again.opened, again.created) == (1, 0)


async def test_what_was_acknowledged_survives_kills_and_is_there_once(process: Process) -> None:
    """Eight writers retry through kills; each member is acknowledged and stored exactly once."""
    acknowledged: dict[str, str] = {}
    groups = 40

    async def writer(number: int) -> None:
        async with BufferClient(process.url, "run") as own:
            for index in range(number, groups, 8):
                await own.open_groups([group(index)])
                for answer in await own.write([rollout(f"s/0/{index}", member) for member in range(2)]):
                    assert answer.code is None, answer
                    assert answer.uid is not None
                    acknowledged[answer.uid] = answer.digest
                for least, event in enough.items():
                    if len(acknowledged) >= least:
                        event.set()

    enough = {10: asyncio.Event(), 30: asyncio.Event(), 50: asyncio.Event()}

    async def killer() -> None:
        for event in enough.values():
            await event.wait()
            process.kill()
            process.start()

    async with BufferClient(process.url, "run") as first:
        await first.open_run(Laws(credit_tokens=10**6), "0" * 32)
    await asyncio.gather(killer(), *(writer(number) for number in range(8)))
    async with BufferClient(process.url, "run") as reader:
        status = await reader.status()
        assert status.environments["env"].groups == {"ready": groups}
        assert status.environments["env"].members == {"accepted": 2 * groups}
        again = await reader.write([rollout("s/0/0", 0)])
        assert again[0].duplicate
        assert again[0].digest == acknowledged["s/0/0:0:0"]
    assert len(acknowledged) == 2 * groups


def post(process: Process, path: str, body: bytes, content_type: str = "application/json") -> tuple[int, bytes]:
    request = urllib.request.Request(process.url + path, body, {"Content-Type": content_type}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


BAD_REWARDS = [b"NaN", b"Infinity", b"1e999", b'"nan"', b'"1"', b"true", b"null"]


@pytest.mark.parametrize("reward", BAD_REWARDS, ids=lambda bad: bad.decode())
async def test_a_bad_reward_stores_nothing_and_the_next_good_write_goes_through(process: Process, client: BufferClient, reward: bytes) -> None:
    await client.open_groups([group(0)])
    good = encode_json(rollout("s/0/0", 0, reward=0.125))
    bad = good.replace(b'"reward":0.125', b'"reward":' + reward)
    assert bad != good
    status, answer = post(process, "/v1/runs/run/rollouts", b"[" + bad + b"]")
    assert status in (200, 400), answer
    assert b'"code":"invalid"' in answer or b'"code":"malformed"' in answer
    status, answer = post(process, "/v1/runs/run/rollouts", b"[" + good + b"]")
    assert (status, b'"code":null' in answer) == (200, True), answer


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"not json", 400),
        (b'{"laws": {}', 400),
        (b'{"laws": {}, "laws": {}, "initial_digest": "x"}', 400),
        (b"[" * 40 + b"]" * 40, 400),
        (b'{"laws": {}, "initial_digest": "\xff"}', 400),
        (b'{"laws": {"max_lagg": 3}, "initial_digest": "x"}', 422),
        (b'{"laws": {"max_lag": "3"}, "initial_digest": "x"}', 422),
        (b"x" * (17 * 1024 * 1024), 413),
    ],
)
async def test_a_bad_body_gets_a_sentence_and_the_service_lives(process: Process, client: BufferClient, body: bytes, expected: int) -> None:
    status, answer = post(process, "/v1/runs/other", body)
    assert status == expected, answer
    assert b'"request_id"' in answer
    assert (await client.status()).imbalance == 0


async def test_it_is_ready_only_by_a_durable_write_and_ends_in_good_order(process: Process, client: BufferClient) -> None:
    with urllib.request.urlopen(process.url + "/readyz", timeout=10) as answer:  # noqa: ASYNC210 (nothing else runs on this loop)
        assert b'"ready":true' in answer.read()
    process.child.send_signal(signal.SIGTERM)
    assert process.child.wait(10) == 0


def test_a_second_buffer_on_the_same_directory_is_refused_in_one_line(process: Process) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "penstock.buffer", "--dir", str(process.directory), "--port", "0"], capture_output=True, text=True, timeout=30
    )
    assert second.returncode == 1
    assert len(second.stderr.strip().splitlines()) == 1, second.stderr


def test_a_port_in_use_is_refused_in_one_line(process: Process, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.buffer", "--dir", str(tmp_path / "other"), "--port", str(process.port)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert second.returncode == 1
    assert f"{process.port}" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1, second.stderr


def test_another_host_without_a_token_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.buffer", "--dir", str(tmp_path), "--host", "0.0.0.0"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=30, env=os.environ)
    assert (refused.returncode, "needs a token" in refused.stderr) == (1, True)


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/runs/run/groups", b'{"groups": [{"id": "s/0/0", "environment": "bad env", "problem_id": "p", "size": 2}]}', 422),
        ("/v1/runs/run/groups", b'{"groups": [{"id": "../x", "environment": "env", "problem_id": "p", "size": 2}]}', 422),
        ("/v1/runs/run/groups", b'{"groups": [{"id": "s/0/0", "environment": "env", "problem_id": "p", "size": 2, "seed": 18446744073709551615}]}', 422),
        ("/v1/runs/new", b'{"laws": {}, "initial_digest": "../../x"}', 422),
        ("/v1/runs/new", b'{"laws": {"max_lag": -5}, "initial_digest": "x"}', 422),
        ("/v1/runs/run/updates/99999999999999999999/cut", b'{"term": 1, "request": {"groups_per_update": 1}}', 422),
        ("/v1/runs/run/journal/e?index=" + "9" * 5000, b"[]", 422),
    ],
)
async def test_a_value_that_cannot_be_kept_is_refused_and_stops_nobody(process: Process, client: BufferClient, path: str, body: bytes, expected: int) -> None:
    status, answer = post(process, path, body)
    assert status == expected, answer
    await client.open_groups([group(0)])
    assert [answer.code for answer in await client.write([rollout("s/0/0", 0)])] == [None]


async def test_a_journal_entry_with_other_content_is_refused_and_stops_nobody(process: Process, client: BufferClient) -> None:
    path = "/v1/runs/run/journal/episode?index=0"
    assert post(process, path, b'[{"a": 1}]')[0] == 200
    assert post(process, path, b'[{"a": 1}]')[0] == 200
    assert post(process, path, b'[{"a": 2}]')[0] == 409
    assert (await client.status()).imbalance == 0
