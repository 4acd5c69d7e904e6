"""Bodies of completions: the same bytes whatever was remembered."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.inference.client import Continuation, PromptTexts, completion_body


def read(body: bytes) -> dict[str, object]:
    found = json.loads(body)
    assert isinstance(found, dict)
    return found


def test_a_body_holds_what_was_asked_for_and_nothing_else() -> None:
    least = {"prompt": [5, 6], "max_tokens": 3, "temperature": 1.0, "logprobs": 0, "return_token_ids": True}
    assert read(completion_body(Continuation(ids=[5, 6], max_tokens=3))) == least
    options = {"temperature": 0.5, "seed": 7, "stop": ["."], "request_id": "r"}
    body = completion_body(Continuation(ids=np.array([5, 6], np.int32), max_tokens=3, temperature=0.5, seed=7, stop=(".",), stop_ids=(9,), request_id="r"))
    assert read(body) == least | options | {"stop_token_ids": [9]}
    assert read(completion_body(Continuation(ids=[], max_tokens=3)))["prompt"] == []


ids = st.lists(st.integers(0, 2**31 - 1), max_size=6)
looks = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["grow", "same", "new"]), ids), max_size=12)


@given(looks, st.sampled_from([0, 20, 10_000]))
def test_what_is_remembered_never_changes_what_is_sent(looks: list[tuple[str, str, list[int]]], most_bytes: int) -> None:
    prompts, last = PromptTexts(most_bytes), {"a": [], "b": []}
    for owner, kind, new in looks:
        last[owner] = last[owner] + new if kind == "grow" else last[owner] if kind == "same" else new
        array = np.array(last[owner], np.int32)
        body = completion_body(Continuation(ids=array, max_tokens=1, affinity=owner), prompts)
        assert read(body)["prompt"] == last[owner]
        array[:] = 0  # whoever gave it may use the memory again
        assert prompts._num_bytes == sum(len(known.text) for known in prompts._known.values())


def test_prompts_beyond_the_bound_are_forgotten_oldest_first() -> None:
    prompts = PromptTexts(most_bytes=6)
    for owner in "abc":
        prompts.text(owner, np.array([10, 2], np.int32))
    assert list(prompts._known) == ["c"]
    assert prompts._num_bytes == 4
