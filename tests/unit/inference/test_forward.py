from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from penstock.testing.inference import FAMILIES

PROMPT = np.random.default_rng(0).integers(0, 256, 300)


@pytest.mark.parametrize("name", FAMILIES)
def test_logprobs_are_those_of_transformers(name: str, bench_of: Any, asked: Any, replies: Any, reference_logprobs: Any) -> None:
    bench = bench_of(name)
    engine = bench.engine(prefill_tokens=192)  # the longest prompt takes two waves
    lengths = (1, 5, 64, 65, 130, 300, 300)
    ended = replies(engine, *(asked(PROMPT[:length], id=str(index), seed=index, max_tokens=40) for index, length in enumerate(lengths)))
    assert len(ended) == len(lengths)
    for choice in ended.values():
        expected = reference_logprobs(bench.model, choice.request.prompt, choice.ids)
        sampled = torch.tensor([token.logprob for token in choice.drawn])
        assert len(sampled) == 40
        assert (sampled - expected).abs().max() <= 2e-6


def test_logprobs_are_after_temperature_and_raw_ones_before(llama: Any, asked: Any, replies: Any, reference_logprobs: Any) -> None:
    (choice,) = replies(llama.engine(), asked(PROMPT[:20], temperature=0.6, max_tokens=30)).values()
    warm = reference_logprobs(llama.model, choice.request.prompt, choice.ids, 0.6)
    raw = reference_logprobs(llama.model, choice.request.prompt, choice.ids, 1.0)
    assert (torch.tensor([token.logprob for token in choice.drawn]) - warm).abs().max() <= 4e-6
    assert (torch.tensor([token.raw_logprob for token in choice.drawn]) - raw).abs().max() <= 2e-6


def test_a_greedy_reply_is_the_likeliest_token_each_time(llama: Any, asked: Any, replies: Any) -> None:
    (choice,) = replies(llama.engine(), asked(PROMPT[:20], temperature=0.0, max_tokens=20)).values()
    ids = PROMPT[:20].tolist()
    for token in choice.ids:
        with torch.no_grad():
            assert int(llama.model(torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids.append(token)
