"""One reply, asked for by the official client and by the stand-in for it."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from tests.unit.buffer.generators.scripted import completion, serving

from penstock.buffer.compat.shim.fallback.openai import OpenAI as StandIn
from penstock.buffer.compat.shim.generator import querying
from penstock.buffer.compat.shim.generator.querying import QueryError, query_single_turn

PROMPT = [{"role": "user", "content": "hi"}]


class Engine:
    """Gives the answers of a script, and keeps what it was asked."""

    def __init__(self, *script: tuple[int, Any]) -> None:
        self.script = list(script)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, path: str, body: Any) -> tuple[int, Any]:
        assert path == "/v1/chat/completions"
        self.asked.append(body)
        return self.script.pop(0)


@pytest.fixture(params=["official", "stand-in"])
def client_of(request: pytest.FixtureRequest) -> Any:
    if request.param == "official":
        return lambda url: openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0)
    return lambda url: StandIn(api_key="none", base_url=f"{url}/v1", max_retries=0)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(querying, "PAUSES_SECONDS", (0.0,))
    monkeypatch.setattr(querying, "ABORT_PAUSE_SECONDS", 0.0)


def test_a_reply_stands_behind_the_messages_with_what_is_known_of_it(client_of: Any) -> None:
    engine = Engine((200, completion("yes", version=4)))
    with serving(engine) as url:
        found = query_single_turn(client_of(url), PROMPT, {"max_tokens": 9, "temperature": 0.5, "top_k": 3}, tools=None)
    assert found == [*PROMPT, {"role": "assistant", "content": "yes"}]
    assert PROMPT == [{"role": "user", "content": "hi"}]
    assert found.finish_reason == "stop"
    runs = [{"policy": "p", "version": 4, "count": 3, "mixed_kv": False, "evidence": "digest"}]
    assert found.facts == {"prompt_tokens": [7], "tokens": [121, 101, 115], "logprobs": [-0.5] * 3, "versions": runs}
    (asked,) = engine.asked
    assert (asked["model"], asked["max_tokens"], asked["temperature"], asked["top_k"], asked["return_token_ids"]) == ("custom", 9, 0.5, 3, True)
    assert "continue_final_message" not in asked


def test_an_aborted_reply_is_continued_with_the_tokens_that_are_left(client_of: Any) -> None:
    engine = Engine((200, completion("ab", "abort", version=1)), (200, completion("c", "abort", version=2)), (200, completion("de", version=2)))
    with serving(engine) as url:
        found = query_single_turn(client_of(url), PROMPT, {"max_tokens": 9})
    assert found[-1] == {"role": "assistant", "content": "abcde"}
    assert (found.facts["tokens"], len(found.facts["logprobs"])) == ([97, 98, 99, 100, 101], 5)
    assert [(run["version"], run["count"]) for run in found.facts["versions"]] == [(1, 2), (2, 1), (2, 2)]
    assert found.facts["prompt_tokens"] == [7]
    assert [one["max_tokens"] for one in engine.asked] == [9, 7, 6]
    assert [one.get("continue_final_message") for one in engine.asked] == [None, True, True]
    assert [one["messages"][1:] for one in engine.asked] == [[], [{"role": "assistant", "content": "ab"}], [{"role": "assistant", "content": "abc"}]]


def test_a_reply_that_was_aborted_at_its_last_token_is_as_long_as_it_may_be(client_of: Any) -> None:
    engine = Engine((200, completion("abc", "abort")))
    with serving(engine) as url:
        found = query_single_turn(client_of(url), PROMPT, {"max_tokens": 3})
    assert (found[-1]["content"], found.finish_reason, len(engine.asked)) == ("abc", "length", 1)


def test_failures_are_tried_again_and_progress_forgives_them(client_of: Any) -> None:
    trouble, little = (503, {"error": {"message": "busy"}}), (200, completion("a", "abort"))
    engine = Engine(*[trouble] * 5, little, *[trouble] * 5, little, (200, completion("b")))
    with serving(engine) as url:
        assert query_single_turn(client_of(url), PROMPT, {"max_tokens": 9})[-1]["content"] == "aab"


@pytest.mark.parametrize("answer", [(503, {}), (200, completion("", "abort"))])
def test_six_attempts_that_bring_nothing_are_enough(client_of: Any, answer: tuple[int, Any]) -> None:
    engine = Engine(*[answer] * 6)
    with serving(engine) as url, pytest.raises(QueryError, match="after 6 attempts"):
        query_single_turn(client_of(url), PROMPT, {"max_tokens": 9})
    assert len(engine.asked) == 6


def test_a_request_that_is_refused_is_not_repeated(client_of: Any) -> None:
    engine = Engine((400, {"error": {"message": "prompt beyond the context"}}))
    with serving(engine) as url, pytest.raises(QueryError, match="prompt beyond the context"):
        query_single_turn(client_of(url), PROMPT, {"max_tokens": 9})


def test_a_server_that_is_not_there_is_given_up(client_of: Any) -> None:
    with serving(Engine()) as url:
        pass
    with pytest.raises(QueryError, match="after 6 attempts"):
        query_single_turn(client_of(url), PROMPT, {"max_tokens": 9})


def test_an_assistants_last_message_is_replaced_and_facts_that_do_not_fit_are_left_out(client_of: Any) -> None:
    engine = Engine((200, completion("x", num_tokens=2)))
    with serving(engine) as url:
        found = query_single_turn(client_of(url), [*PROMPT, {"role": "assistant", "content": "old"}], {"max_tokens": 9})
    assert found == [*PROMPT, {"role": "assistant", "content": "x"}]
    assert found.facts == {}
