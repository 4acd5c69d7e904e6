"""Answers of engines, whole or event by event, as the replies that they make."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.errors import InfraError
from penstock.gateway.answers import complete, read_answer, take
from penstock.gateway.sampling import Order, Sampled
from penstock.types import SamplerFacts, Usage, VersionRun

RUN = {"policy": "policy", "version": 3, "count": 2}
CHOICE: dict[str, Any] = {"index": 0, "token_ids": [5, 6], "logprobs": {"token_logprobs": [-0.5, -0.25]}, "versions": [RUN], "finish_reason": "stop"}


def order(**changed: Any) -> Order:
    return Order(**({"ids": np.array([1, 2, 3], np.int32), "num_choices": 1, "max_tokens": 2, "temperature": 0.5, "seed": 0} | changed))


def replies(*answers: dict[str, Any], num_choices: int = 1, asked: Order | None = None) -> list[Sampled]:
    found = [Sampled() for _ in range(num_choices)]
    for answer in answers:
        take(read_answer(msgspec.json.encode(answer)), found, asked or order())
    return found


def completed(choice: dict[str, Any], asked: Order | None = None) -> Sampled:
    (reply,) = replies({"choices": [choice]})
    complete(reply, asked or order(), "named", 7)
    return reply


def test_events_of_a_stream_add_up_to_the_reply_and_name_the_choices_that_have_grown() -> None:
    found = [Sampled(), Sampled()]
    events: list[dict[str, Any]] = [
        {"choices": [CHOICE | {"index": 1, "finish_reason": None, "stop_reason": "END"}]},
        {"choices": [CHOICE | {"token_ids": [9], "finish_reason": "stop"}, CHOICE | {"index": 1, "versions": [], "finish_reason": "length", "stop_reason": 2}]},
        {"choices": [{"index": 0, "text": ""}], "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}, "seconds": 0.5}},
    ]
    assert [take(read_answer(msgspec.json.encode(event)), found, order()) for event in events] == [[1], [0, 1], [0]]
    assert [reply.ids for reply in found] == [[9], [5, 6, 5, 6]]
    assert found[1].logprobs == [-0.5, -0.25] * 2
    assert found[1].versions == [VersionRun(**RUN)]
    assert [(reply.finish, reply.stop_text) for reply in found] == [("stop", None), ("length", "END")]
    assert [reply.usage for reply in found] == [Usage(prompt_tokens=3, cached_tokens=2, seconds=0.5)] * 2


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": None, "prompt_tokens_details": None, "seconds": None}, {"prompt_tokens_details": {}}])
def test_what_an_engine_does_not_tell_of_its_work_counts_as_nothing(usage: dict[str, Any]) -> None:
    assert replies({"usage": usage})[0].usage == Usage()


def test_likelier_tokens_are_taken_where_there_are_any() -> None:
    likeliest = [{"a": -0.5, "b": -1.0}, None]
    (reply,) = replies({"choices": [CHOICE | {"logprobs": {"token_logprobs": [-0.5, -0.25], "top_logprobs": likeliest}}]})
    assert reply.alternatives == [{"a": -0.5, "b": -1.0}, {}]


def test_what_an_engine_says_of_its_sampler_is_kept_and_null_says_nothing() -> None:
    told = {"temperature": 0.5, "filters": {"top_k": 3.0}, "engine": "ours"}
    assert replies({"sampler": told})[0].sampler == SamplerFacts(temperature=0.5, filters={"top_k": 3.0}, engine="ours")
    assert replies({"sampler": None})[0].sampler == SamplerFacts()


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"index": 1}, "choice 1 where 1 were asked for"),
        ({"index": -1}, "choice -1 where 1 were asked for"),
        ({"prompt_token_ids": [1, 2]}, "was sent 3 tokens and continued 2"),
        ({"token_ids": None, "text": "hi"}, "does not tell the token ids"),
    ],
)
def test_an_answer_to_something_else_is_refused(choice: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InfraError, match=sentence):
        replies({"choices": [CHOICE | choice]})


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"finish_reason": None}, "broke off"),
        ({"token_ids": [5, 6, 7]}, "3 tokens where 1 to 2"),
        ({"token_ids": [], "logprobs": None, "versions": []}, "0 tokens where 1 to 2"),
        ({"logprobs": {"token_logprobs": [-0.5]}}, "2 tokens with 1 logprobs"),
        ({"logprobs": None}, "2 tokens with 0 logprobs"),
        ({"versions": [RUN | {"count": 1}]}, "2 tokens with versions of 1"),
    ],
)
def test_a_reply_that_does_not_fit_together_is_refused(choice: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InfraError, match=sentence):
        completed(CHOICE | choice)


def test_a_reply_that_was_aborted_may_be_empty() -> None:
    reply = completed({"index": 0, "finish_reason": "abort"})
    assert (reply.ids, reply.versions, reply.sampler) == ([], [], SamplerFacts())


def test_an_engine_that_names_no_version_is_taken_at_the_word_of_whoever_asked() -> None:
    unnamed = CHOICE | {"versions": None}
    reply = completed(unnamed)
    assert reply.versions == [VersionRun(policy="named", version=7, count=2)]
    assert reply.sampler == SamplerFacts(temperature=0.5, engine="openai")
    filtered = completed(unnamed, order(filters={"top_k": 3, "min_p": 0.1, "guided": {"a": "b"}}))
    assert filtered.sampler == SamplerFacts(temperature=0.5, filters={"top_k": 3.0, "min_p": 0.1, "guided": 1.0}, engine="openai")


def test_a_reply_is_recorded_in_the_types_of_a_trace() -> None:
    ids, logprobs = completed(CHOICE).arrays()
    assert (ids.dtype, logprobs.dtype) == (np.int32, np.float32)
    assert (ids.tolist(), logprobs.tolist()) == ([5, 6], [-0.5, -0.25])
