"""Agents built with the official client, in front of a real gateway and a real buffer. The engine is a stub that says what it is told to."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import openai
import pytest
from tests.services.gateway_stage import Stage, counting
from tests.unit.gateway.stub_engine import StubEngine, ids_of

from penstock.trace import samples
from penstock.types import Rollout, RolloutStatus, Source

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}},
}
_groups = count()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, engine: StubEngine) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("gateway"), engine.url)
    made.start_gateway("--max-tokens", "64", "--reply-seconds", "5", "--max-sessions", "64")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def fresh(engine: StubEngine) -> Iterator[None]:
    engine.say = counting
    engine.forget()
    yield


def train_session(stage: Stage, **wanted: Any) -> dict[str, Any]:
    return stage.open(**{"group_id": f"g/0/{next(_groups)}", "group_size": 2, "environment": "env", "problem_id": "p"} | wanted)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def ask(client: openai.OpenAI, messages: list[dict[str, Any]], **options: Any) -> Any:
    return client.chat.completions.create(model="any", messages=messages, **options)  # type: ignore[call-overload]


def stored(stage: Stage, session: dict[str, Any], **body: Any) -> Rollout:
    ended = stage.end(session, **({"reward": 1.0} | body))
    assert ended["stored"]["fate"] == "accepted", ended
    return stage.rollout(ended["rollout_uid"])


def trained(rollout: Rollout) -> list[tuple[int, ...]]:
    """Runs of tokens that carry loss, in order; each as often as it does."""
    runs = []
    for sample in samples(rollout):
        run: list[int] = []
        for id, loss in zip([*sample.ids.tolist(), -1], [*sample.loss_mask.tolist(), False], strict=True):
            if loss:
                run.append(id)
            elif run:
                runs.append(tuple(run))
                run = []
    return runs


def reply_ids(text: str) -> tuple[int, ...]:
    return (*ids_of(text), 260)


def abandoned(rollout: Rollout) -> Counter[str]:
    return Counter(segment.abandoned for segment in rollout.trace.segments if segment.abandoned is not None)


def test_an_agent_talks_and_every_token_is_stored_as_the_engine_sampled_it(stage: Stage, engine: StubEngine) -> None:
    session = train_session(stage)
    messages = [{"role": "system", "content": "be brief"}, user("one")]
    with stage.agent(session) as client:
        for word in ("two", "three"):
            reply = ask(client, messages)
            messages += [reply.choices[0].message.model_dump(), user(word)]
    assert [message["content"] for message in messages if message["role"] == "assistant"] == ["reply 1.0", "reply 2.0"]
    rollout = stored(stage, session)
    (sample,) = samples(rollout)
    sampled = [choice["token_ids"] for choice in engine.choices]
    assert sample.ids[sample.loss_mask].tolist() == [id for ids in sampled for id in ids]
    assert sample.logprobs[sample.loss_mask].tolist() == [logprob for choice in engine.choices for logprob in choice["logprobs"]["token_logprobs"]]
    # The engine was sent ids, and each prompt begins with all that came before.
    first, second = (request["prompt"] for request in engine.requests)
    assert second[: len(first) + len(sampled[0])] == first + sampled[0]
    assert [(turn.role, turn.message) for turn in rollout] == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", "reply 1.0"),
        ("user", "two"),
        ("assistant", "reply 2.0"),
    ]


def test_an_edited_history_is_a_fork_and_every_sampled_token_is_trained_once(stage: Stage) -> None:
    session = train_session(stage)
    with stage.agent(session) as client:
        first = ask(client, [user("one")]).choices[0].message.content
        ask(client, [user("one"), {"role": "assistant", "content": first}, user("two")])
        ask(client, [user("one"), {"role": "assistant", "content": "what I wish I had said"}, user("two")])
        ask(client, [user("summary of all that"), user("three")])
    status, shown = stage.call("GET", f"/sessions/{session['id']}")
    assert (status, shown["turns"], shown["forks"]) == (200, 4, 2)
    rollout = stored(stage, session)
    assert Counter(trained(rollout)) == Counter([reply_ids("reply 1.0"), reply_ids("reply 2.0"), reply_ids("reply 2.0"), reply_ids("reply 1.0")])
    assert not abandoned(rollout)
    written = [segment for segment in rollout.trace.segments if "wish" in bytes(id for id in segment.ids.tolist() if id < 256).decode()]
    assert [segment.source for segment in written] == [Source.ENV]


def test_of_several_choices_the_one_that_is_continued_is_kept(stage: Stage) -> None:
    session = train_session(stage)
    with stage.agent(session) as client:
        reply = ask(client, [user("one")], n=3)
        assert [choice.message.content for choice in reply.choices] == ["reply 1.0", "reply 1.1", "reply 1.2"]
        ask(client, [user("one"), reply.choices[2].message.model_dump(), user("two")], n=2)
    rollout = stored(stage, session)
    assert trained(rollout) == [reply_ids("reply 1.2"), reply_ids("reply 2.0")]
    assert abandoned(rollout) == {"unused_choice": 3}
    assert rollout.metadata["abandoned"] == {"unused_choice": 3}


def test_the_same_request_again_is_a_retry_unless_the_session_says_otherwise(stage: Stage, engine: StubEngine) -> None:
    for repeats, kept in (("retry", ["second"]), ("sample", ["first", "second"])):
        session = train_session(stage, repeats=repeats)
        with stage.agent(session) as client:
            for word in ("first", "second"):
                engine.say = lambda prompt, index, word=word: word  # type: ignore[misc]
                assert ask(client, [user("one")]).choices[0].message.content == word
        rollout = stored(stage, session)
        assert trained(rollout) == [reply_ids(word) for word in kept]
        assert abandoned(rollout) == ({"client_retry": 1} if repeats == "retry" else {})


def test_an_older_reply_that_the_client_goes_on_from_is_kept_and_the_newer_is_not(stage: Stage, engine: StubEngine) -> None:
    session = train_session(stage)
    with stage.agent(session) as client:
        for word in ("first", "second"):
            engine.say = lambda prompt, index, word=word: word  # type: ignore[misc]
            ask(client, [user("one")])
        engine.say = lambda prompt, index: "third"
        ask(client, [user("one"), {"role": "assistant", "content": "first"}, user("two")])
    assert trained(stored(stage, session)) == [reply_ids("first"), reply_ids("third")]


def test_tools_are_called_and_their_results_go_on_from_the_sampled_call(stage: Stage, engine: StubEngine) -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"b": 2, "a": 1}}\n</tool_call>'
    engine.say = lambda prompt, index: f"I add. {call}" if prompt.count("assistant") == 1 else "3"
    for stream in (False, True):
        session = train_session(stage)
        with stage.agent(session) as client:
            if stream:
                chunks = list(ask(client, [user("1+2?")], tools=[TOOL], stream=True))
                (told,) = (chunk.choices[0].delta.tool_calls[0] for chunk in chunks if chunk.choices[0].delta.tool_calls)
                content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
                assert chunks[-1].choices[0].finish_reason == "tool_calls"
            else:
                choice = ask(client, [user("1+2?")], tools=[TOOL]).choices[0]
                (told,), content = choice.message.tool_calls, choice.message.content
                assert choice.finish_reason == "tool_calls"
            assert (content, told.function.name, json.loads(told.function.arguments)) == ("I add.", "add", {"a": 1, "b": 2})
            # Clients write arguments as they like: what they mean counts.
            said = {"role": "assistant", "content": content, "tool_calls": [{"id": told.id, "type": "function", "function": {"name": "add", "arguments": ""}}]}
            said["tool_calls"][0]["function"]["arguments"] = '{"a":1,  "b":2}'  # type: ignore[index]
            result = {"role": "tool", "tool_call_id": told.id, "content": "3"}
            assert ask(client, [user("1+2?"), said, result], tools=[TOOL]).choices[0].message.content == "3"
        assert stage.call("GET", f"/sessions/{session['id']}")[1]["forks"] == 0
        rollout = stored(stage, session)
        assert trained(rollout) == [reply_ids(f"I add. {call}"), reply_ids("3")]
        assert [turn.role for turn in rollout] == ["user", "assistant", "tool", "assistant"]


def test_a_stream_tells_the_same_as_a_whole_reply(stage: Stage, engine: StubEngine) -> None:
    engine.say = lambda prompt, index: "über STOP and more"
    session = train_session(stage)
    with stage.agent(session) as client:
        options: dict[str, Any] = {"stop": [" STOP"], "logprobs": True, "top_logprobs": 1, "n": 2}
        chunks = list(ask(client, [user("one")], stream=True, stream_options={"include_usage": True}, **options))
        whole = ask(client, [user("two")], **options)
    for index, choice in enumerate(whole.choices):
        parts = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == index]
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content == "über"
        assert parts[0].delta.role == "assistant"
        assert parts[-1].finish_reason == choice.finish_reason == "stop"
        told = [token.logprob for part in parts if part.logprobs for token in part.logprobs.content]
        assert told == [token.logprob for token in choice.logprobs.content] == [-(place + 1) / 8 for place in range(len("über STOP".encode()))]
        assert all(token.top_logprobs[0].logprob == token.logprob for token in choice.logprobs.content)
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 2 * len("über STOP".encode())
    assert len([chunk for chunk in chunks if chunk.choices]) > 6


def test_sampling_that_is_bent_is_refused_in_training_or_stored_and_not_trained(stage: Stage) -> None:
    bent: list[dict[str, Any]] = [
        {"top_p": 0.9},
        {"presence_penalty": 1.0},
        {"frequency_penalty": 0.5},
        {"logit_bias": {"7": 3}},
        {"response_format": {"type": "json_object"}},
        {"extra_body": {"top_k": 5}},
        {"extra_body": {"min_p": 0.1}},
        {"extra_body": {"repetition_penalty": 1.2}},
        {"extra_body": {"guided_regex": "a+"}},
    ]
    session = train_session(stage)
    with stage.agent(session) as client:
        for options in bent:
            with pytest.raises(openai.BadRequestError, match="allow_filters"):
                ask(client, [user("one")], **options)
        with pytest.raises(openai.BadRequestError, match="tool_choice"):
            ask(client, [user("one")], tools=[TOOL], tool_choice="required")
        # Values that ask for nothing are no filters.
        ask(client, [user("one")], top_p=1.0, presence_penalty=0, response_format={"type": "text"}, extra_body={"top_k": -1})
    assert len(trained(stored(stage, session))) == 1
    session = train_session(stage, allow_filters=True)
    with stage.agent(session) as client:
        reply = ask(client, [user("one")], top_p=0.9)
        ask(client, [user("one"), reply.choices[0].message.model_dump(), user("two")])
    rollout = stored(stage, session)
    assert trained(rollout) == [reply_ids("reply 2.0")]
    assert [run.policy for segment in rollout.trace.segments for run in segment.versions] == ["policy:filtered", "policy"]
    session = train_session(stage, allow_filters=True)
    with stage.agent(session) as client:
        ask(client, [user("one")], top_p=0.9)
    rollout = stored(stage, session)
    assert (rollout.status, rollout.metadata["error"]) == (RolloutStatus.ENV_ERROR, "not_trainable")


def test_rewards_have_names_belong_to_turns_or_to_the_whole_and_are_never_made_up(stage: Stage) -> None:
    session = train_session(stage)
    path = f"/sessions/{session['id']}"
    with stage.agent(session) as client:
        first = ask(client, [user("one")])
        second = ask(client, [user("one"), first.choices[0].message.model_dump(), user("two")])
    assert stage.call("POST", f"{path}/end", {})[0] == 422
    for wrong in (b'{"reward": NaN}', b'{"reward": 1e999}', b'{"reward": "1"}', b'{"reward": true}', b'{"reward": null}', b"{}", b'{"rewards": {"a b": 1}}'):
        status, told = stage.call("POST", f"{path}/reward", wrong)
        assert status == 422, (wrong, told)
    for where in ({}, {"turn": 0}):
        status, told = stage.call("POST", f"{path}/reward", {"rewards": {"huge": 1e308, "more": 1e308}, **where})
        assert status == 422, (where, told)
    assert stage.call("POST", f"{path}/reward", {"turn": "chatcmpl-other", "reward": 1.0})[0] == 404
    assert stage.call("POST", f"{path}/reward", {"turn": 0, "reward": 0.25}) == (200, {"rewards": {}, "turns": {first.id: 0.25}})
    assert stage.call("POST", f"{path}/reward", {"turn": 1, "rewards": {"style": 0.5}})[1]["turns"] == {first.id: 0.25, second.id: 0.5}
    assert stage.call("POST", f"{path}/reward", {"rewards": {"right": 1.0, "short": -0.5}})[0] == 200
    assert stage.call("POST", f"{path}/reward", {"rewards": {"short": -0.25}})[0] == 200
    rollout = stage.rollout(stage.end(session)["rollout_uid"])
    assert (rollout.reward, rollout.rewards) == (0.75, {"right": 1.0, "short": -0.25})
    assert [(turn.reward, turn.rewards) for turn in rollout if turn.role == "assistant"] == [(0.25, {}), (0.5, {"style": 0.5})]


def test_rewards_of_turns_alone_add_up(stage: Stage) -> None:
    session = train_session(stage)
    with stage.agent(session) as client:
        reply = ask(client, [user("one")])
    stage.call("POST", f"/sessions/{session['id']}/reward", {"turn": reply.id, "reward": 0.5})
    rollout = stage.rollout(stage.end(session)["rollout_uid"])
    assert (rollout.reward, rollout.rewards) == (0.5, {"turns": 0.5})


def test_the_end_may_be_told_twice_and_nothing_is_said_after_it(stage: Stage) -> None:
    session = train_session(stage)
    with stage.agent(session) as client:
        ask(client, [user("one")])
        first = stage.end(session, reward=1.0, metadata={"seen": ["a"]})
        assert stage.end(session, reward=0.0) == first
        with pytest.raises(openai.ConflictError):
            ask(client, [user("one")])
    assert stage.call("POST", f"/sessions/{session['id']}/reward", {"reward": 1.0})[0] == 409
    assert stage.rollout(first["rollout_uid"]).metadata["seen"] == ["a"]


def test_a_failure_that_the_client_tells_of_is_stored_as_one_and_its_slot_is_tried_again(stage: Stage) -> None:
    session = train_session(stage)
    stage.end(session, status="infra_error", failure="my browser crashed")
    rollout = stage.rollout(f"{session['group_id']}:0:0")
    assert (rollout.status, rollout.failure, rollout.reward) == (RolloutStatus.INFRA_ERROR, "my browser crashed", None)
    again = stage.open(group_id=session["group_id"])
    assert (again["member"], again["retry"]) == (0, 1)


def test_slots_are_taken_once(stage: Stage) -> None:
    first = train_session(stage)
    wanted = {"group_id": first["group_id"]}
    second = stage.open(**wanted)
    assert (first["member"], second["member"]) == (0, 1)
    assert stage.call("POST", "/sessions", wanted)[0] == 409
    assert stage.call("POST", "/sessions", wanted | {"member": 1})[0] == 409
    assert stage.call("POST", "/sessions", wanted | {"member": 7})[0] == 404
    assert stage.call("POST", "/sessions", wanted | {"member": 0, "retry": 3})[0] == 409
    assert stage.call("POST", "/sessions", wanted | {"problem_id": "q"})[0] == 409
    assert stage.call("POST", "/sessions", {"group_id": "nobody/0/0"})[0] == 404
    assert stage.call("POST", "/sessions", {"group_size": 4})[0] == 422
    assert stage.call("POST", "/sessions", {"unheard": 4})[0] == 422
    for session in (first, second):
        stage.end(session, status="env_error", failure="not needed")


def test_a_session_of_its_own_is_stored_and_never_trained(stage: Stage) -> None:
    session = stage.open(key="mine")
    assert stage.open(key="mine")["id"] == session["id"]
    with stage.agent(session) as client:
        ask(client, [user("one")], top_p=0.5)
        assert client.models.list().data[0].id == "model"
    assert session["purpose"] == "probe"
    rollout = stored(stage, session)
    assert (rollout.status, rollout.reward) == (RolloutStatus.OK, 1.0)


def test_whoever_does_not_know_the_id_gets_nothing(stage: Stage) -> None:
    session = stage.open()
    for path in ("/sessions/s-" + "0" * 32, "/sessions/x", "/sessions/" + session["id"][:8], "/sessions/..%2f"):
        assert stage.call("GET", path)[0] == 404
        assert stage.call("POST", f"{path}/v1/chat/completions", {"messages": [user("one")]})[0] == 404
    _, listed = stage.call("GET", "/sessions")
    assert session["id"][:8] in {shown["id"] for shown in listed["sessions"]}
    assert session["id"] not in json.dumps(listed)


def test_wrong_requests_are_told_what_is_wrong_in_openais_shape(stage: Stage) -> None:
    session = stage.open()
    wrong: list[tuple[Any, str | None]] = [
        (b"{", None),
        ([], None),
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "stranger", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages"),
        ({"messages": [user("a")], "n": 10**9}, "n"),
        ({"messages": [user("a")], "max_tokens": -1}, "max_tokens"),
        ({"messages": [user("a")], "temperature": "hot"}, "temperature"),
        ({"messages": [user("a")], "stop": [""]}, "stop"),
        ({"messages": [user("a")], "tools": [1]}, "tools"),
        ({"messages": [user("a")], "top_logprobs": 3}, "top_logprobs"),
    ]
    for body, field in wrong:
        status, told = stage.call("POST", f"/sessions/{session['id']}/v1/chat/completions", body)
        assert (status, told["error"]["param"], told["error"]["type"]) == (400, field, "invalid_request_error"), (body, told)
    assert stage.call("POST", f"/sessions/{session['id']}/v1/chat/completions", {"messages": [user("a")]})[0] == 200


def test_faults_of_the_engine_cost_a_wait_or_a_clear_error_and_never_a_token(stage: Stage, engine: StubEngine) -> None:
    session = train_session(stage)
    with stage.agent(session) as client:
        engine.faults.extend(["429", "die"])
        assert ask(client, [user("one")]).choices[0].message.content == "reply 1.0"
        engine.faults.extend(["abort", "abort"])
        assert ask(client, [user("two")], max_tokens=3).choices[0].finish_reason == "length"
        engine.faults.append("refuse")
        with pytest.raises(openai.BadRequestError, match="too long"):
            ask(client, [user("three")])
        engine.faults.append("garbage")
        with pytest.raises(openai.InternalServerError, match="cannot be read"):
            ask(client, [user("four")])
        engine.faults.append("break")
        with pytest.raises(openai.APIError):
            list(ask(client, [user("five")], stream=True))
    rollout = stored(stage, session)
    # The stub says "reply ..." anew after each abort, so three tokens come in three parts.
    assert trained(rollout) == [reply_ids("reply 1.0"), (ord("r"), ord("r"), ord("r"))]


def connection(stage: Stage, session: dict[str, Any], body: dict[str, Any]) -> http.client.HTTPConnection:
    made = http.client.HTTPConnection("127.0.0.1", stage.port, timeout=30)
    made.request("POST", f"/sessions/{session['id']}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return made


def settled(stage: Stage, session: dict[str, Any], turns: int) -> None:
    """Wait until a request that nobody waits for has ended."""
    for _ in range(1000):
        _, shown = stage.call("GET", f"/sessions/{session['id']}")
        if (shown["turns"], shown["requests_under_way"]) == (turns, 0):
            return
    raise AssertionError(shown)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_and_comes_back_is_answered_and_what_it_left_is_abandoned(stage: Stage, engine: StubEngine, stream: bool) -> None:
    session = train_session(stage)
    body = {"messages": [user("one")], "stream": stream}
    engine.faults.append("hold")
    gone = connection(stage, session, body)
    if stream:
        assert gone.getresponse().read(20)
    else:
        while not engine.requests:
            pass
    gone.close()
    settled(stage, session, 1)
    assert len(engine.aborted) >= 1
    with stage.agent(session) as client:
        assert ask(client, [user("one")]).choices[0].message.content == "reply 1.0"
    rollout = stored(stage, session)
    assert trained(rollout) == [reply_ids("reply 1.0")]
    assert abandoned(rollout) == {"client_gone": 1}


def test_the_same_key_is_the_same_request_however_often_and_a_retry_gets_what_was_sampled(stage: Stage, engine: StubEngine) -> None:
    session = train_session(stage)
    with stage.agent(session) as client:
        keyed = [ask(client, [user("one")], extra_headers={"Idempotency-Key": "k"}) for _ in range(3)]
        assert len({reply.id for reply in keyed}) == 1
        fresh = ask(client, [user("two")])
        again = ask(client, [user("two")], extra_headers={"x-stainless-retry-count": "1"})
        assert again.id == fresh.id
    assert len(engine.requests) == 2
    assert trained(stored(stage, session)) == [reply_ids("reply 1.0"), reply_ids("reply 1.0")]


async def test_requests_of_one_session_may_overlap(stage: Stage, engine: StubEngine) -> None:
    import asyncio

    session = train_session(stage)
    async with openai.AsyncOpenAI(base_url=session["base_url"], api_key="none", max_retries=0) as client:
        replies = await asyncio.gather(*(client.chat.completions.create(model="m", messages=[user(f"{number % 4}")]) for number in range(16)))  # type: ignore[list-item]
    assert {reply.choices[0].message.content for reply in replies} == {"reply 1.0"}
    rollout = stored(stage, session)
    assert (len(trained(rollout)), abandoned(rollout)) == (4, {"client_retry": 12})
    assert len({request["seed"] for request in engine.requests}) == 16


def test_metrics_are_told(stage: Stage) -> None:
    import urllib.request

    with urllib.request.urlopen(f"{stage.url}/metrics") as answer:
        lines = answer.read().decode()
    assert "penstock_gateway_turns" in lines
    assert stage.call("GET", "/readyz") == (200, {"ready": True})
