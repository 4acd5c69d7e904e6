from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from penstock.errors import ConflictError

PROMPT = np.random.default_rng(2).integers(0, 256, 90)


def steps(engine: Any, count: int) -> None:
    for _ in range(count):
        engine.step()


def test_each_token_carries_the_version_whose_weights_gave_its_logprob(llama: Any, asked: Any, replies: Any, reference_logprobs: Any) -> None:
    models = [llama.model, llama.other_model(1), llama.other_model(2)]
    engine = llama.engine()
    for index in range(3):
        engine.submit(asked(PROMPT[: 60 + 15 * index], id=str(index), seed=index, max_tokens=50))
    for version in (1, 2):
        steps(engine, 15)
        engine.swap(llama.served(version, models[version]))
    ended = replies(engine)
    assert len(ended) == 3
    for choice in ended.values():
        assert [run.version for run in choice.versions] == [0, 1, 2]
        assert sum(run.count for run in choice.versions) == len(choice.drawn) == 50
        assert not any(run.mixed_kv for run in choice.versions)
        start = 0
        for run in choice.versions:
            expected = reference_logprobs(models[run.version], choice.request.prompt, choice.ids)[start : start + run.count]
            sampled = torch.tensor([token.logprob for token in choice.drawn[start : start + run.count]])
            assert (sampled - expected).abs().max() <= 1e-5
            start += run.count


def test_the_other_version_would_be_seen(llama: Any, asked: Any, replies: Any, reference_logprobs: Any) -> None:
    (choice,) = replies(llama.engine(), asked(PROMPT, max_tokens=20)).values()
    wrong = reference_logprobs(llama.other_model(1), choice.request.prompt, choice.ids)
    assert (torch.tensor([token.logprob for token in choice.drawn]) - wrong).abs().max() > 0.1


def test_a_kept_cache_marks_what_follows(llama: Any, asked: Any, replies: Any) -> None:
    engine = llama.engine()
    engine.submit(asked(PROMPT, id="old", max_tokens=30))
    steps(engine, 9)
    engine.swap(llama.served(1, llama.other_model(1)), keep_kv=True)
    ended = replies(engine, asked(PROMPT, id="new", max_tokens=5))
    assert [(run.version, run.count, run.mixed_kv) for run in ended["old", 0].versions] == [(0, 10, False), (1, 20, True)]
    assert [(run.version, run.count, run.mixed_kv) for run in ended["new", 0].versions] == [(1, 5, False)]


def test_prompts_kept_under_old_weights_are_forgotten(llama: Any, asked: Any, replies: Any, reference_logprobs: Any) -> None:
    model, engine = llama.other_model(1), llama.engine()
    replies(engine, asked(PROMPT))
    engine.swap(llama.served(1, model))
    choice = replies(engine, asked(PROMPT, max_tokens=20))["r", 0]
    expected = reference_logprobs(model, PROMPT, choice.ids)
    assert (torch.tensor([token.logprob for token in choice.drawn]) - expected).abs().max() <= 1e-5


def test_the_same_bytes_under_a_new_number_disturb_nothing(llama: Any, asked: Any, replies: Any) -> None:
    whole = replies(llama.engine(), asked(PROMPT, seed=3, max_tokens=20))["r", 0]
    engine = llama.engine()
    engine.submit(asked(PROMPT, seed=3, max_tokens=20))
    steps(engine, 4)
    engine.swap(llama.served(1))
    choice = replies(engine)["r", 0]
    assert choice.drawn == whole.drawn
    assert [(run.version, run.count) for run in choice.versions] == [(0, 5), (1, 15)]
    assert engine.counters.recomputed_tokens == 0


def test_a_version_is_never_used_for_other_weights(llama: Any) -> None:
    engine = llama.engine()
    with pytest.raises(ConflictError, match="never used for other weights"):
        engine.swap(llama.served(0, llama.other_model(1)))
    assert engine.served.digest == llama.served().digest
