"""Gateways that die and come back, sessions that nobody ends, limits, and tokens."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.services.gateway_stage import SECONDS, Stage
from tests.services.test_gateway import ask, reply_ids, stored, trained, user
from tests.unit.gateway.stub_engine import StubEngine

from penstock.types import RolloutStatus

GROUP = {"group_size": 2, "environment": "env", "problem_id": "p"}


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
        with stage.agent(session, max_retries=20) as client:
            assert ask(client, [user("one")]).choices[0].message.content == "reply 1.0"
    finally:
        engine.on_request = lambda: None
    assert trained(stored(stage, session)) == [reply_ids("reply 1.0")]


def test_the_next_life_knows_what_has_ended_and_ends_what_nobody_ends_by_name(stage: Stage) -> None:
    stage.start_gateway("--name", "sweeper", "--idle-seconds", "60")
    done, late = stage.open(group_id="ender/0/0", **GROUP), stage.open(group_id="sweeper/0/0", deadline_seconds=1.0, **GROUP)
    with stage.agent(done) as client:
        ask(client, [user("one")])
    # On a machine with much to do its time may be over before it can ask.
    with stage.agent(late) as client, contextlib.suppress(openai.ConflictError):
        ask(client, [user("one")])
    first = stage.end(done, reward=1.0)
    stage.kill_gateway()
    stage.start_gateway("--name", "sweeper", "--idle-seconds", "1")
    # What has ended has ended, whatever is said again.
    assert stage.end(done, reward=0.0) == first | {"base_url": waited(stage, done, "ended")["base_url"]}
    idle = stage.open(group_id="sweeper/0/1", **GROUP)
    for one, error in ((late, "deadline"), (idle, "idle")):
        shown = waited(stage, one, "ended")
        rollout = stage.rollout(shown["rollout_uid"])
        assert (rollout.status, rollout.reward, rollout.metadata["error"]) == (RolloutStatus.INFRA_ERROR, None, error)
    status, told = stage.call("POST", f"/sessions/{late['id']}/v1/chat/completions", {"messages": [user("one")]})
    assert (status, told["error"]["code"]) == (409, "conflict")
    assert stage.call("GET", "/sessions")[1] == {"open": 0, "sessions": []}


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
