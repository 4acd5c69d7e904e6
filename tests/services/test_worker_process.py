"""Worker processes over a real buffer process, against a stub inference server in this one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.unit.rollout.stub_engine import StubEngine

from penstock.buffer import api
from penstock.buffer.client import BufferClient
from penstock.chat import ChatTemplate, write_byte_tokenizer
from penstock.errors import InvariantError, LimitError
from penstock.inference.client import Placing
from penstock.metrics import read_jsonl
from penstock.process.identity import identify
from penstock.rollout.config import ActorConfig, EnvConfig, EvalConfig, WorkerConfig
from penstock.rollout.episode import Ticket
from penstock.rollout.running import read_views
from penstock.rollout.worker import run_worker
from penstock.rollout.writing import AcksLog, Writer
from penstock.types import CutRequest, Laws, Problem, Rollout, RolloutStatus, Trace
from penstock.wire import decode_msgpack, parse_json

SECONDS = 40.0
CONFIG = """
run: {name: run, updates: 1}
model: {path: model}
batch: {groups_per_update: 2}
envs:
  digits: {kind: sort, concurrency: 8}
actor: {group_size: 4, max_tokens: 12, reply_seconds: 20}
"""


def sorting(prompt: str) -> str:
    """Right for an even number of digits."""
    digits = re.findall(r"sort (\d+)>", prompt)[-1]
    return "".join(sorted(digits)) if len(digits) % 2 == 0 else digits


def write_run(directory: Path, config: str) -> None:
    """Make `directory` that of a run, as far as a worker looks at it."""
    write_byte_tokenizer(directory / "model", "plain")
    (directory / "model" / "config.json").write_text("{}")
    (directory / "config.yaml").write_text(config.replace("path: ", f"path: {directory}/"))


class Stage:
    """A buffer with an open run, a stub engine, and workers."""

    def __init__(self, directory: Path, engine: StubEngine) -> None:
        self.directory, self.engine = directory, engine
        write_run(directory, CONFIG)
        port_file = directory / "port"
        command = [sys.executable, "-m", "penstock", "buffer", "--dir", str(directory / "buffer"), "--port", "0", "--port-file", str(port_file)]
        with (directory / "buffer.log").open("ab") as log:
            self.buffer = subprocess.Popen(command, stderr=log)
        deadline = time.monotonic() + SECONDS
        while not port_file.exists():
            assert self.buffer.poll() is None, (directory / "buffer.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{port_file.read_text()}"

    def log(self, name: str = "w") -> str:
        return (self.directory / f"{name}.log").read_text()

    def acks(self, name: str = "w") -> list[str]:
        path = self.directory / "acks" / f"{name}.log"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    @contextlib.contextmanager
    def worker(self, name: str = "w", **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        words = [str(self.directory), "--env", "digits", "--buffer", self.url, "--server", self.engine.url, "--name", name]
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "penstock", "worker", *words], stderr=log, env=os.environ | environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with StubEngine(sorting, changes=False).running() as engine:
        made = Stage(tmp_path, engine)
        try:
            yield made
        finally:
            made.buffer.kill()
            made.buffer.wait()


@pytest_asyncio.fixture
async def client(stage: Stage) -> AsyncIterator[BufferClient]:
    async with BufferClient(stage.url, "run") as opened:
        yield opened


async def open_run(client: BufferClient, *, credit_tokens: int = 600) -> None:
    """A group is estimated at 4 x (about 11 + 12) tokens and costs about 40, so credits last for several."""
    await client.open_run(Laws(credit_tokens=credit_tokens, session_seconds=2.0), "0" * 32)


async def until(holds: Callable[[api.RunStatus], bool], client: BufferClient, process: subprocess.Popen[bytes] | None = None) -> api.RunStatus:
    deadline = time.monotonic() + SECONDS
    while True:
        status = await client.status()
        if holds(status):
            return status
        assert time.monotonic() < deadline, status
        assert process is None or process.poll() is None, "the worker has ended"
        await asyncio.sleep(0.05)


def ready(status: api.RunStatus) -> int:
    found = status.environments.get("digits")
    return 0 if found is None else found.groups.get("ready", 0)


async def stopped(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return await ended(process)


async def ended(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(process.wait, SECONDS)


async def test_a_worker_fills_groups_as_far_as_credits_last_and_goes_on_when_they_return(stage: Stage, client: BufferClient) -> None:
    with stage.worker() as worker:  # started before there is a run: it waits for it
        await open_run(client)
        status = await until(lambda status: ready(status) >= 4 and status.environments["digits"].members.get("pending", 0) == 0, client, worker)
        found = status.environments["digits"]
        assert set(found.groups) == {"ready"}
        # Groups are opened by an estimate and held at what they cost.
        assert found.held_tokens <= 1.2 * found.credit_tokens
        first = found.groups["ready"]
        term = (await client.take_term(api.TakeTerm(owner="learner", checkpoint=0))).term
        plan = (await client.cut(0, term, CutRequest(groups_per_update=2))).plan
        assert plan is not None
        groups = await client.fetch(plan)
        await client.record(0, term, digest="1" * 32)
        await client.publish(1, term)
        await until(lambda status: ready(status) > first - 2, client, worker)
        assert await stopped(worker) == 0, stage.log()
    told = list(read_jsonl(stage.directory / "metrics.jsonl"))
    assert sum(line["rollout/digits/episodes"] for line in told) >= 4 * first
    assert sum(line["rollout/digits/infra_errors"] for line in told) == 0
    assert sum(line.get("rollout/digits/wait/reply", 0.0) for line in told) > 0
    # Played at the same time; which of the two is ready first is up to chance.
    assert sorted(group.id for group in groups) == ["digits:train/0/0", "digits:train/0/1"]
    said = {tuple(reply["token_ids"]): reply["logprobs"]["token_logprobs"] for reply in stage.engine.replies}
    for group in groups:
        assert [rollout.member for rollout in group.rollouts] == [0, 1, 2, 3]
        for rollout in group.rollouts:
            segment = rollout.trace.segments[-1]
            assert segment.logprobs is not None
            assert said[tuple(segment.ids.tolist())] == segment.logprobs.tolist()
            assert rollout.reward == float(len(segment.ids) % 2 == 1)  # digits and the end token
    seeds = [request["seed"] for request in stage.engine.requests]
    assert len(set(seeds)) == len(seeds)


async def test_a_worker_that_is_told_to_stop_leaves_in_good_order(stage: Stage, client: BufferClient) -> None:
    await open_run(client)
    with stage.worker() as worker:
        await until(lambda status: ready(status) >= 2, client, worker)
        stage.engine.always = "hang"
        await client.open_run(Laws(credit_tokens=5000, session_seconds=60.0), "0" * 32)
        deadline = time.monotonic() + SECONDS
        while len(stage.engine.requests) - len(stage.engine.replies) < 8:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 10) == 0, stage.log()
    # The session would have lasted a minute; its slots are free at once, and nothing counts as a failure.
    await client.open_session("next", "next")
    slots = await client.claim("next", 4096, environments=["digits"], wait_seconds=0)
    assert sorted(slot.retry for slot in slots)[-9:] == [0] + [1] * 8
    stored = stage.acks()
    members = (await client.status()).environments["digits"].members
    assert len(stored) == len(set(stored)) == members["accepted"]


@pytest.mark.parametrize("point", ["worker.after_claim", "worker.mid_episode", "worker.before_write", "worker.after_write"])
async def test_what_a_killed_worker_had_not_written_is_done_by_the_next(stage: Stage, client: BufferClient, point: str) -> None:
    await open_run(client)
    with stage.worker("a", PENSTOCK_DIE_AT=f"{point}:3") as first:
        assert await ended(first) == -signal.SIGKILL, stage.log("a")
    with stage.worker("b") as second:
        status = await until(lambda status: ready(status) >= 4 and status.environments["digits"].members.get("pending", 0) == 0, client, second)
        assert await stopped(second) == 0, stage.log("b")
    found = status.environments["digits"]
    assert set(found.groups) == {"ready"}
    assert set(found.members) == {"accepted"}
    assert status.imbalance == 0
    noted = stage.acks("a") + stage.acks("b")
    assert len(noted) == len(set(noted))
    # A kill may come between the store's answer and the note of it, never the other way round.
    assert len(noted) <= found.members["accepted"]
    for uid in noted:
        with urllib.request.urlopen(f"{stage.url}/v1/runs/run/rollouts/{uid}", timeout=10) as stored:  # noqa: ASYNC210 (nothing else runs on this loop)
            assert decode_msgpack(stored.read(), Rollout).rollout_uid == uid


async def test_a_worker_whose_session_is_over_begins_another(stage: Stage, client: BufferClient) -> None:
    await open_run(client)
    with stage.worker() as worker:
        await until(lambda status: ready(status) >= 2, client, worker)
        worker.send_signal(signal.SIGSTOP)
        await client.open_session("watch", "watch")
        deadline = time.monotonic() + SECONDS
        while "lost w" not in (stage.directory / "buffer.log").read_text():
            assert time.monotonic() < deadline
            await client.beat("watch")
            await asyncio.sleep(0.1)
        worker.send_signal(signal.SIGCONT)
        await client.open_run(Laws(credit_tokens=5000, session_seconds=2.0), "0" * 32)
        await until(lambda status: ready(status) >= 20, client, worker)
    assert "is over, its episodes are dropped" in stage.log()


class BrokenHost:
    async def play(self, ticket: Ticket, problem: Problem) -> Rollout:
        raise LimitError(f"no place for {ticket.uid}")


@contextlib.asynccontextmanager
async def broken_agents(config: WorkerConfig, template: ChatTemplate, placing: Placing) -> AsyncIterator[BrokenHost]:
    yield BrokenHost()


async def test_a_host_of_agents_that_breaks_costs_its_episodes_and_not_the_worker(stage: Stage, client: BufferClient) -> None:
    await open_run(client)
    env = EnvConfig(kind="sort", concurrency=8, agent="mine:run")
    config = WorkerConfig(
        buffer_url=stage.url,
        run="run",
        servers=(stage.engine.url,),
        model=stage.directory / "model",
        environment="digits",
        env=env,
        metrics=stage.directory / "m",
    )
    working = asyncio.create_task(run_worker(config, agents=broken_agents))
    await until(lambda status: any("too_few" in state for found in status.environments.values() for state in found.groups), client)
    assert not working.done()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert sum(line.get("rollout/digits/errors/unforeseen", 0) for line in read_jsonl(stage.directory / "m")) >= 4


async def test_a_rollout_that_the_buffer_refuses_is_stored_as_a_failure_and_its_slot_is_free(stage: Stage, client: BufferClient) -> None:
    await open_run(client)
    stage.engine.version = 9  # nobody has recorded it
    with stage.worker() as worker:
        status = await until(lambda status: any("too_few" in state for found in status.environments.values() for state in found.groups), client, worker)
    assert any("failed" in state for state in status.environments["digits"].members)
    assert "9 was never recorded" in stage.log()


async def test_one_rollout_that_cannot_be_sent_does_not_keep_the_others(client: BufferClient, tmp_path: Path) -> None:
    await open_run(client)
    group = api.OpenGroup(id="s/0/0", environment="env", problem_id="p", size=3)
    await client.open_groups([group])

    def failed(member: int, metadata: dict[str, object]) -> Rollout:
        return Rollout(
            run="run",
            environment="env",
            problem_id="p",
            group_id="s/0/0",
            member=member,
            retry=0,
            rollout_uid=f"u{member}",
            trace=Trace(segments=()),
            status=RolloutStatus.ENV_ERROR,
            failure="invalid",
            metadata=metadata,
        )

    with AcksLog(tmp_path / "acks.log") as acks:
        writer = Writer(client, acks)
        assert await writer.write([failed(0, {}), failed(1, {})]) == ["accepted", "accepted"]
        assert await writer.write([failed(0, {})]) == ["accepted"]
        assert await writer.write([failed(0, {"other": 1})]) == ["late"]
        with pytest.raises(InvariantError, match="u2"):
            await writer.write([failed(2, {"bad": float("nan")})])
    assert [line.split()[0] for line in (tmp_path / "acks.log").read_text().splitlines()] == ["u0", "u1", "u0"]


async def test_an_evaluation_is_stored_beside_the_run_and_nobody_else_is_given_its_slots(stage: Stage, client: BufferClient, tmp_path: Path) -> None:
    from penstock.rollout.evaluate import EvaluationConfig, evaluate
    from penstock.testing.inference import random_model, write_model

    await open_run(client)
    write_model(tmp_path / "tiny", random_model("llama"))
    config = EvaluationConfig(
        model=tmp_path / "tiny",
        environment="digits",
        env=EnvConfig(kind="sort"),
        actor=ActorConfig(max_tokens=4, template="plain"),
        eval=EvalConfig(problems=40, samples=2),
    )
    result = await evaluate(config, buffer=client, acks=tmp_path / "acks" / "eval.log")
    assert (result.num_problems, result.errors) == (40, {})
    assert len(stage.acks("eval")) == 40 * 3
    await client.open_session("s", "worker")
    assert await client.claim("s", 8, wait_seconds=0) == ()
    term = (await client.take_term(api.TakeTerm(owner="learner", checkpoint=0))).term
    assert (await client.cut(0, term, CutRequest(groups_per_update=1), wait_seconds=0)).plan is None
    await evaluate(config, buffer=client, acks=tmp_path / "acks" / "again.log")  # what is stored stays as it is
    assert stage.acks("again") == []
    with urllib.request.urlopen(f"{stage.url}/v1/runs/run/ledger", timeout=10) as answer:  # noqa: ASYNC210 (nothing else runs on this loop)
        ledger = parse_json(answer.read())
    assert ledger["imbalance"] == 0
    assert [(found["environment"], found["purpose"], found["groups"]) for found in ledger["balances"]] == [("digits:eval", "eval", {"ready": 80})]


@pytest.mark.parametrize(
    ("config", "env", "told"),
    [
        (CONFIG, "letters", "the run has no environment 'letters'; it has digits"),
        (CONFIG.replace("model: {path: ", "model: {path: nowhere/"), "digits", "nowhere/model is not a model directory"),
        (CONFIG.replace("concurrency", "concurency"), "digits", "envs.digits.concurency: unknown key"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(tmp_path: Path, config: str, env: str, told: str) -> None:
    write_run(tmp_path, config)
    command = [sys.executable, "-m", "penstock", "worker", str(tmp_path), "--env", env, "--buffer", "http://127.0.0.1:9", "--server", "http://127.0.0.1:9"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert refused.returncode == 2
    assert told in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr


REWARDS = """
def reward(messages, ground_truth, **_):
    said = messages[-1]["content"]
    if len(said) % 2:
        raise SystemExit("an odd number of digits")
    return {"total": 2.0 * (said == ground_truth), "step_outputs": [{"step_index": 0, "base_reward": 0.5}]}
"""


async def test_rewards_come_from_the_configured_function_and_its_failures_are_retried_and_never_rewards(stage: Stage, client: BufferClient) -> None:
    (stage.directory / "rewards.py").write_text(REWARDS)
    config = CONFIG.replace("concurrency: 8", f"concurrency: 8, reward: {stage.directory}/rewards.py")
    write_run(stage.directory, config)
    await client.open_run(Laws(credit_tokens=600, session_seconds=10.0, max_retries=1), "0" * 32)
    with stage.worker() as worker:
        await until(lambda status: ready(status) >= 2 and "dropped(too_few)" in status.environments["digits"].groups, client, worker)
        assert await stopped(worker) == 0, stage.log()
    term = (await client.take_term(api.TakeTerm(owner="learner", checkpoint=0))).term
    plan = (await client.cut(0, term, CutRequest(groups_per_update=2))).plan
    assert plan is not None
    for group in await client.fetch(plan):
        assert [rollout.reward for rollout in group.rollouts] == [2.0] * 4
        assert [turn.reward for rollout in group.rollouts for turn in rollout if turn.role == "assistant"] == [0.5] * 4
    told = list(read_jsonl(stage.directory / "metrics.jsonl"))
    assert sum(line.get("rollout/digits/errors/reward", 0) for line in told) > 0
    assert "an odd number of digits" in stage.log()


async def test_a_reward_function_that_cannot_be_loaded_ends_the_worker_with_one_line(stage: Stage, client: BufferClient) -> None:
    write_run(stage.directory, CONFIG.replace("concurrency: 8", "concurrency: 8, reward: no_such_module:reward"))
    with stage.worker() as worker:
        assert await ended(worker) == 2
    (line,) = [line for line in stage.log().splitlines() if line.startswith("penstock: ")]
    assert "no_such_module" in line


async def test_a_slow_episode_is_named_in_the_log_and_in_the_file_that_status_reads(stage: Stage, client: BufferClient) -> None:
    write_run(stage.directory, CONFIG.replace("reply_seconds: 20", "reply_seconds: 20, slow_seconds: 0.5"))
    await open_run(client)
    stage.engine.always = "hang"
    with stage.worker() as worker:
        deadline = time.monotonic() + SECONDS
        while "more episodes are slower than 0.5 s" not in stage.log():
            assert time.monotonic() < deadline, stage.log()
            assert worker.poll() is None, stage.log()
            await asyncio.sleep(0.05)
        (view,) = read_views(stage.directory / "workers", time.time())
        assert (view.worker, view.in_flight, {episode.waits_for for episode in view.slowest}) == ("w", 8, {"a reply"})
        assert all(episode.uid.startswith("digits:train/0/") for episode in view.slowest)
        assert view.process == identify(worker.pid)
        assert await stopped(worker) == 0, stage.log()
    assert list((stage.directory / "workers").iterdir()) == []


BLOCKING = """
import re
import time

from penstock.envs import Observation, SortEnvironment


class Blocks(SortEnvironment):
    def make(self):
        return BlocksEnv()


class BlocksEnv:
    async def open(self, problem, seed):
        from penstock.types import Message

        return Observation(messages=(Message(role="user", content=problem.prompt),))

    async def step(self, reply):
        {blocks}

    async def score(self, rollout):
        return {{"reward": 0.0}}
"""


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        (
            "time.sleep(600)",
            r"WARNING .* has blocked the event loop for 0\.3 s in step, .*; after 1 s the worker ends\n(.*\n)*"
            r".*env\.step of episode digits:train/0/\d+:\d:0 has blocked the event loop for 1 s in step, .*blocking\.py:\d+; the worker ends",
        ),
        ("re.match('(a+)+$', 'a' * 60 + 'b')", r'Timeout \(0:00:02\)!(.|\n)*blocking\.py", line \d+ in step'),  # lets no other thread run, either
    ],
)
async def test_an_environment_that_blocks_ends_its_worker_and_its_slots_are_tried_again(stage: Stage, client: BufferClient, blocks: str, told: str) -> None:
    (stage.directory / "blocking.py").write_text(BLOCKING.format(blocks=blocks))
    write_run(stage.directory, CONFIG.replace("kind: sort", "kind: 'blocking:Blocks'").replace("reply_seconds: 20", "block_seconds: 1"))
    await open_run(client)
    with stage.worker(PYTHONPATH=str(stage.directory)) as worker:
        assert await ended(worker) == 1, stage.log()
    assert re.search(told, stage.log()), stage.log()
    await client.open_session("next", "next")
    slots: tuple[api.ClaimedSlot, ...] = ()
    deadline = time.monotonic() + SECONDS
    while not any(slot.retry == 1 for slot in slots):
        slots = await client.claim("next", 4096, environments=["digits"], wait_seconds=1)
        assert time.monotonic() < deadline
        await client.beat("next")


LEAKING = """
import asyncio
import time

from penstock.envs import Observation, SortEnvironment
from penstock.types import Message

KEPT = []


class Leaks(SortEnvironment):
    def make(self):
        return LeaksEnv()


class LeaksEnv:
    async def open(self, problem, seed):
        self.index = len(KEPT)
        KEPT.append(bytearray(16 << 20))
        return Observation(messages=(Message(role="user", content=problem.prompt),))

    async def step(self, reply):
        if self.index % 8 == 1:
            bytearray(1 << 40)  # far too much at once
        if self.index % 8 == 2:
            await asyncio.to_thread(time.sleep, 600)  # keeps its thread, and must not keep the worker
        return Observation(done=True)

    async def score(self, rollout):
        return {"reward": 0.0}
"""


async def test_a_worker_whose_environment_leaks_leaves_in_good_order_and_what_failed_is_counted(stage: Stage, client: BufferClient) -> None:
    (stage.directory / "leaking.py").write_text(LEAKING)
    write_run(stage.directory, CONFIG.replace("kind: sort", "kind: 'leaking:Leaks', memory_mb: 384"))
    await client.open_run(Laws(credit_tokens=100_000, session_seconds=60.0), "0" * 32)
    with stage.worker(PYTHONPATH=str(stage.directory)) as worker:
        assert await ended(worker) == 1, stage.log()
    (line,) = [line for line in stage.log().splitlines() if line.startswith("penstock: ")]
    assert re.fullmatch(r"penstock: the worker holds \d+ MB of memory, and may hold 384 MB \(envs\.digits\.memory_mb\): an environment .*", line)
    told = list(read_jsonl(stage.directory / "metrics.jsonl"))
    assert max(line.get("rollout/digits/memory_mb", 0) for line in told) > 384
    errors = [sum(line.get(f"rollout/digits/errors/{kind}", 0) for line in told) for kind in ("memory", "env_raised")]
    assert min(errors) >= 1, stage.log()
    # What failed was stored as such, and nothing else was lost.
    members = (await client.status()).environments["digits"].members
    assert members["accepted"] == len(stage.acks()) - sum(errors), (members, errors, stage.log())
