"""Gateways that die and come back, sessions that nobody ends, limits, tokens, and an engine of another make."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.services.gateway_stage import SECONDS, Stage
from tests.services.test_gateway import ask, counting, reply_ids, stored, trained, user
from tests.unit.gateway.stub_engine import StubEngine

from penstock.types import Evidence, RolloutStatus

GROUP = {"group_size": 2, "environment": "env", "problem_id": "p"}


@pytest.fixture(scope="module")
def engine() -> Iterator[StubEngine]:
    stub = StubEngine(counting)
    yield stub
    stub.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, engine: StubEngine) -> Iterator[Stage]:
    """A buffer that all share; each test starts its own gateway."""
    made = Stage(tmp_path_factory.mktemp("lives"), engine.url)
    yield made
    made.buffer.kill()
    made.buffer.wait()


@pytest.fixture
def stage(home: Stage, engine: StubEngine) -> Iterator[Stage]:
    engine.requests.clear()
    engine.choices.clear()
    home.port = 0
    yield home
    home.kill_gateway()


def waited(stage: Stage, session: dict[str, Any], state: str) -> dict[str, Any]:
    deadline = time.monotonic() + SECONDS
    while True:
        shown: dict[str, Any] = stage.call("GET", f"/sessions/{session['id']}")[1]
        if shown["state"] == state:
            return shown
        assert time.monotonic() < deadline, shown
        time.sleep(0.05)


@pytest.mark.parametrize("point", ["gateway.before_journal", "gateway.after_journal"])
def test_a_gateway_that_is_killed_in_a_turn_comes_back_and_each_token_counts_once(stage: Stage, engine: StubEngine, point: str) -> None:
    stage.start_gateway("--name", point, PENSTOCK_DIE_AT=f"{point}:2")
    session = stage.open(group_id=f"{point}/0/0", **GROUP)
    stage.call("POST", f"/sessions/{session['id']}/reward", {"rewards": {"early": 0.5}})
    messages = [user("one")]
    with stage.agent(session) as client:
        messages += [ask(client, messages).choices[0].message.model_dump(), user("two")]
        with pytest.raises(openai.APIConnectionError):
            ask(client, messages)
        stage.gateway.wait()
        stage.start_gateway("--name", point)
        # The agent retries, as the client does by itself, and goes on.
        messages += [ask(client, messages).choices[0].message.model_dump(), user("three")]
        ask(client, messages)
    # What was in the journal is given again; what was not is sampled again, the same, and is there once.
    assert len(engine.requests) == (3 if point == "gateway.after_journal" else 4)
    rollout = stored(stage, session)
    assert trained(rollout) == [reply_ids("reply 1.0"), reply_ids("reply 2.0"), reply_ids("reply 3.0")]
    assert rollout.rewards == {"early": 0.5, "reward": 1.0}
    assert rollout.metadata["abandoned"] == {}
    if point == "gateway.before_journal":
        assert engine.requests[1]["seed"] == engine.requests[2]["seed"]


def test_an_agent_whose_client_retries_by_itself_does_not_notice_a_restart(stage: Stage, engine: StubEngine) -> None:
    stage.start_gateway("--name", "patient")
    session = stage.open(group_id="patient/0/0", **GROUP)
    restarted = []

    def restart() -> None:
        if not restarted:
            restarted.append(True)
            stage.kill_gateway()
            stage.start_gateway("--name", "patient")

    engine.on_request = restart
    try:
        with stage.agent(session, max_retries=5) as client:
            assert ask(client, [user("one")]).choices[0].message.content == "reply 1.0"
    finally:
        engine.on_request = lambda: None
    assert trained(stored(stage, session)) == [reply_ids("reply 1.0")]


def test_an_ended_session_that_was_not_stored_is_stored_by_the_next_life(stage: Stage) -> None:
    stage.start_gateway("--name", "ender")
    session = stage.open(group_id="ender/0/0", **GROUP)
    with stage.agent(session) as client:
        ask(client, [user("one")])
    first = stage.end(session, reward=1.0)
    stage.kill_gateway()
    stage.start_gateway("--name", "ender")
    assert stage.end(session, reward=0.0) == first | {"base_url": waited(stage, session, "ended")["base_url"]}
    _, listed = stage.call("GET", "/sessions")
    assert listed == {"open": 0, "sessions": []}


def test_sessions_that_nobody_ends_fail_by_name_also_after_a_restart(stage: Stage) -> None:
    stage.start_gateway("--name", "sweeper", "--idle-seconds", "60")
    session = stage.open(group_id="sweeper/0/0", deadline_seconds=1.0, **GROUP)
    with stage.agent(session) as client:
        ask(client, [user("one")])
    stage.kill_gateway()
    stage.start_gateway("--name", "sweeper", "--idle-seconds", "1")
    idle = stage.open(group_id="sweeper/0/1", **GROUP)
    for one, error in ((session, "deadline"), (idle, "idle")):
        shown = waited(stage, one, "ended")
        rollout = stage.rollout(shown["rollout_uid"])
        assert (rollout.status, rollout.reward, rollout.metadata["error"]) == (RolloutStatus.INFRA_ERROR, None, error)
    status, told = stage.call("POST", f"/sessions/{session['id']}/v1/chat/completions", {"messages": [user("one")]})
    assert (status, told["error"]["code"]) == (409, "conflict")


def test_limits_and_tokens_are_kept(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    stage.start_gateway("--name", "strict", "--max-sessions", "1", "--token-file", str(tmp_path / "token"))
    assert stage.call("POST", "/sessions", {})[0] == 401
    allowed = {"Authorization": "Bearer s3cret"}
    status, session = stage.call("POST", "/sessions", {}, **allowed)
    assert status == 201
    assert stage.call("POST", "/sessions", {}, **allowed)[0] == 429
    for method, path in (("GET", ""), ("POST", "/reward"), ("POST", "/end"), ("POST", "/v1/chat/completions")):
        assert stage.call(method, f"/sessions/{session['id']}{path}", {} if method == "POST" else None)[0] == 401
    assert stage.call("GET", "/livez")[0] == 200
    with openai.OpenAI(base_url=session["base_url"], api_key="s3cret", max_retries=0) as client:
        assert ask(client, [user("one")]).choices[0].message.content == "reply 1.0"
    assert stage.call("POST", f"/sessions/{session['id']}/end", {"reward": 1.0}, **allowed)[0] == 200
    assert stage.call("POST", "/sessions", {}, **allowed)[0] == 201


def test_an_engine_that_names_no_versions_is_believed_to_serve_what_the_run_published(home: Stage) -> None:
    vllm = StubEngine(counting, dialect="vllm")
    ours, home.engine_url = home.engine_url, vllm.url
    try:
        home.start_gateway("--name", "vllm")
        session = home.open(group_id="vllm/0/0", **GROUP)
        with home.agent(session) as client:
            first = ask(client, [user("one")], n=2)
            content = "".join(
                chunk.choices[0].delta.content or ""
                for chunk in ask(client, [user("one"), first.choices[1].message.model_dump(), user("two")], stream=True)
                if chunk.choices
            )
        assert content == "reply 2.0"
        rollout = stored(home, session)
        assert trained(rollout) == [reply_ids("reply 1.1"), reply_ids("reply 2.0")]
        assert {(run.policy, run.version, run.evidence) for segment in rollout.trace.segments for run in segment.versions} == {("policy", 0, Evidence.ASSERTED)}
        assert {request["model"] for request in vllm.requests} == {"stub"}
    finally:
        home.engine_url = ours
        home.kill_gateway()
        vllm.close()
