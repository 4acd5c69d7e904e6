"""A seeded reply is a function of seed, prompt and weights: nothing else in the batch or the cache changes a bit of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

RANDOM = np.random.default_rng(1)
PROMPT = RANDOM.integers(0, 256, 150)
NEIGHBOURS = [RANDOM.integers(0, 256, int(length)) for length in RANDOM.integers(1, 200, 20)]


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_neighbours_do_not_change_a_bit(name: str, bench_of: Any, asked: Any, replies: Any) -> None:
    bench = bench_of(name)
    wanted = asked(PROMPT, id="wanted", seed=7, max_tokens=60, temperature=0.9)
    alone = replies(bench.engine(), wanted)["wanted", 0]
    engine = bench.engine()
    for index, prompt in enumerate(NEIGHBOURS):
        engine.submit(asked(prompt, id=str(index), seed=index, max_tokens=5 + 3 * index, top_p=0.9 if index % 2 else 1.0))
    for _ in range(4):
        engine.step()
    crowded = replies(engine, wanted)["wanted", 0]
    assert crowded.drawn == alone.drawn


def test_a_cached_prompt_does_not_change_a_bit(llama: Any, asked: Any, replies: Any) -> None:
    fresh = replies(llama.engine(), asked(PROMPT, seed=7, max_tokens=30))["r", 0]
    engine = llama.engine()
    replies(engine, asked(PROMPT[:140], seed=1), asked(PROMPT, id="same", seed=2))
    again = replies(engine, asked(PROMPT, seed=7, max_tokens=30))["r", 0]
    assert fresh.cached_tokens == 0
    assert again.cached_tokens == len(PROMPT)
    assert again.drawn == fresh.drawn


def test_choices_differ_and_each_is_a_function_of_its_index(llama: Any, asked: Any, replies: Any) -> None:
    three = replies(llama.engine(), asked(PROMPT, seed=7, num_choices=3))
    five = replies(llama.engine(), asked(PROMPT, seed=7, num_choices=5))
    assert len({tuple(choice.ids) for choice in five.values()}) == 5
    assert all(three[key].drawn == five[key].drawn for key in three)


def test_a_prompt_that_several_share_is_computed_once(llama: Any, asked: Any, replies: Any) -> None:
    engine = llama.engine()
    replies(engine, *(asked(PROMPT, id=str(index), seed=index, num_choices=2) for index in range(4)))
    assert engine.counters.prompt_tokens == 4 * len(PROMPT)
    assert engine.counters.prompt_tokens - engine.counters.cached_tokens == len(PROMPT)


def test_prompts_that_begin_alike_share_whole_chunks(llama: Any, asked: Any, replies: Any) -> None:
    other = np.concatenate([PROMPT[:130], NEIGHBOURS[0][:1], PROMPT[131:]])
    engine = llama.engine()
    ended = replies(engine, asked(PROMPT, id="a"), asked(other, id="b"))
    assert ended["b", 0].cached_tokens == 128


def test_kept_prompts_are_bounded(llama: Any, asked: Any, replies: Any) -> None:
    engine = llama.engine(prefix_tokens=100)
    ended = replies(engine, *(asked(prompt, id=str(index), max_tokens=2) for index, prompt in enumerate(NEIGHBOURS)))
    assert len(ended) == len(NEIGHBOURS)
    assert engine.kept_prefix_tokens <= 100
