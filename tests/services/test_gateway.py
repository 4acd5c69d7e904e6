"""Agents built with the official client, in front of a real gateway and a real buffer. The engine is a stub that says what it is told to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.services.gateway_stage import Stage
from tests.unit.gateway.stub_engine import StubEngine

from penstock.trace import samples


def counting(prompt: str, index: int) -> str:
    """Another reply for each turn and each choice."""
    return f"reply {prompt.count('assistant')}.{index}"


@pytest.fixture(scope="module")
def engine() -> Iterator[StubEngine]:
    stub = StubEngine(counting)
    yield stub
    stub.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, engine: StubEngine) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("gateway"), engine.url)
    made.start_gateway("--max-tokens", "64")
    yield made
    made.close()


def test_an_agent_talks_and_every_token_is_stored_as_the_engine_sampled_it(stage: Stage, engine: StubEngine) -> None:
    engine.choices.clear()
    session = stage.open(group_id="a/0/0", group_size=2, environment="env", problem_id="p")
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one"}]
    with stage.agent(session) as client:
        for word in ("two", "three"):
            reply = client.chat.completions.create(model="any", messages=messages)
            messages += [reply.choices[0].message.model_dump(), {"role": "user", "content": word}]
    assert [message["content"] for message in messages if message["role"] == "assistant"] == ["reply 1.0", "reply 2.0"]
    ended = stage.end(session, reward=1.0)
    assert (ended["state"], ended["stored"]["fate"], ended["rollout_uid"]) == ("ended", "accepted", "a/0/0:0:0")
    rollout = stage.rollout("a/0/0:0:0")
    (sample,) = samples(rollout)
    sampled = [choice["token_ids"] for choice in engine.choices]
    assert sample.ids[sample.loss_mask].tolist() == [id for ids in sampled for id in ids]
    assert sample.logprobs[sample.loss_mask].tolist() == [logprob for choice in engine.choices for logprob in choice["logprobs"]["token_logprobs"]]
    # The engine was sent ids, and each prompt begins with all that came before.
    first, second = (request["prompt"] for request in engine.requests[-2:])
    assert second[: len(first) + len(sampled[0])] == first + sampled[0]
