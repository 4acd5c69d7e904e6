from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from penstock.errors import InvalidError
from penstock.inference.engine.requests import Finish

PROMPT = np.random.default_rng(3).integers(0, 256, 40)


def test_no_more_replies_run_than_allowed_and_all_end(llama: Any, asked: Any) -> None:
    engine = llama.engine(max_running=3)
    for index in range(8):
        engine.submit(asked(PROMPT, id=str(index), seed=index, max_tokens=3 + index))
    ended, most = set(), 0
    while engine.has_work:
        ended |= {choice.request.id for choice in engine.step() if choice.finish is not None}
        most = max(most, engine.num_running)
    assert most == 3
    assert ended == {str(index) for index in range(8)}


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_the_shortest_replies_end_once(max_tokens: int, llama: Any, asked: Any, replies: Any) -> None:
    ended = replies(llama.engine(), asked(PROMPT, max_tokens=max_tokens, num_choices=3))
    assert [len(choice.drawn) for choice in ended.values()] == [max_tokens] * 3


def test_places_of_the_cache_are_reserved_and_returned(llama: Any, asked: Any, replies: Any) -> None:
    engine = llama.engine(kv_tokens=2 * 60, max_running=100)
    for index in range(5):
        engine.submit(asked(PROMPT, id=str(index), max_tokens=20))
    engine.step()
    assert engine.num_running == 2
    assert engine.reserved_tokens == 120
    assert len(replies(engine)) == 5
    assert engine.reserved_tokens == 0


def test_an_abort_returns_what_was_sampled(llama: Any, asked: Any, replies: Any) -> None:
    engine = llama.engine(max_running=2)
    for id in ("end", "keep", "queued"):
        engine.submit(asked(PROMPT, id=id, max_tokens=30))
    for _ in range(5):
        engine.step()
    aborted = {choice.request.id: choice for choice in engine.abort(lambda request: request.id in ("end", "queued"))}
    assert {id: (choice.finish, len(choice.drawn)) for id, choice in aborted.items()} == {"end": (Finish.ABORT, 6), "queued": (Finish.ABORT, 0)}
    rest = replies(engine)
    assert {id: len(choice.drawn) for (id, _), choice in rest.items()} == {"keep": 30}
    assert engine.reserved_tokens == 0


def test_a_stop_id_ends_a_reply_and_is_part_of_it(llama: Any, asked: Any, replies: Any) -> None:
    free = replies(llama.engine(), asked(PROMPT, seed=5, max_tokens=40))["r", 0].ids
    stop = free[11]
    choice = replies(llama.engine(), asked(PROMPT, seed=5, max_tokens=40, stop_ids=[stop]))["r", 0]
    assert choice.finish is Finish.STOP
    assert choice.ids == free[: free.index(stop) + 1]


def test_a_stop_text_ends_a_reply_and_is_named(llama: Any, asked: Any, replies: Any) -> None:
    free = replies(llama.engine(), asked(PROMPT, seed=6, max_tokens=200))["r", 0].ids
    # Two letters in a row that the model really said.
    at = next(place for place in range(199) if all(32 < id < 127 for id in free[place : place + 2]))
    text = bytes(free[at : at + 2]).decode()
    choice = replies(llama.engine(), asked(PROMPT, seed=6, max_tokens=200, stop_texts=["never said", text]))["r", 0]
    assert (choice.finish, choice.stop_text) == (Finish.STOP, text)
    assert choice.ids == free[: at + 2]


def test_weights_that_give_no_number_end_the_reply_and_not_the_engine(llama: Any, asked: Any, replies: Any) -> None:
    broken = llama.other_model(1)
    with torch.no_grad():
        broken.model.norm.weight.fill_(3e38)
    engine = llama.engine()
    engine.swap(llama.served(1, broken))
    assert replies(engine, asked(PROMPT))["r", 0].finish is Finish.ERROR
    engine.swap(llama.served(2))
    assert replies(engine, asked(PROMPT))["r", 0].finish is Finish.LENGTH


@pytest.mark.parametrize(
    ("prompt", "settings", "word"),
    [
        ([], {}, "empty"),
        (np.zeros(1024, np.int32), {}, "no room"),
        ([1, 512], {}, r"0\.\.511"),
        ([1, -1], {}, r"0\.\.511"),
        ([1], {"max_tokens": 1024}, "max_tokens"),
        ([1], {"max_tokens": 0}, "max_tokens"),
        ([1], {"num_choices": 129}, r"n must lie in 1\.\.128"),
        ([1], {"num_choices": 128, "max_tokens": 1023}, "tokens of cache"),
    ],
)
def test_what_can_never_be_served_is_refused(prompt: Any, settings: Any, word: str, llama: Any, asked: Any) -> None:
    engine = llama.engine(kv_tokens=4096)
    with pytest.raises(InvalidError, match=word):
        engine.submit(asked(prompt, **settings))
    assert not engine.has_work
