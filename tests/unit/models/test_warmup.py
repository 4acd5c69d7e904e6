from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

from penstock.errors import ConfigError
from penstock.models import Demonstration, WarmUpConfig, load_model, model_tensors, token_scores, tree_hidden, tree_layout, warm_up, weights_digest


def copying() -> Iterator[Demonstration]:
    """The reply repeats the prompt's one digit, twice or three times."""
    number = 0
    while True:
        digit = number % 10
        yield Demonstration(prompt=(20, digit), reply=(digit,) * (2 + number % 2))
        number += 1


def test_a_warmed_up_model_does_what_was_shown(directory_of: Callable[..., Path]) -> None:
    model = load_model(directory_of("llama"))
    result = warm_up(model, copying(), WarmUpConfig(steps=60, batch_size=20, lr_warmup_steps=10))
    assert len(result.losses) == 60
    assert result.losses[-1] < 0.3 < 3 < result.losses[0]
    ids = torch.tensor([20, 7, 7, 7])
    hidden = tree_hidden(model, ids, torch.arange(4), tree_layout([4], [-1]))
    assert token_scores(model, hidden[1:2], ids[2:3]).logprobs_T.exp().item() > 0.9


def test_the_first_loss_is_the_mean_over_reply_tokens_only(directory_of: Callable[..., Path]) -> None:
    directory = directory_of("llama")
    shown = [Demonstration(prompt=(1, 2, 3), reply=(4,)), Demonstration(prompt=(5,), reply=(6, 7))]
    plain = load_model(directory)
    plain.set_attn_implementation("sdpa")
    logprobs = []
    for demonstration in shown:
        ids = torch.tensor([*demonstration.prompt, *demonstration.reply])
        table = plain(ids[None]).logits[0].log_softmax(-1)
        logprobs += [table[place - 1, ids[place]].item() for place in range(len(demonstration.prompt), len(ids))]
    result = warm_up(load_model(directory), shown, WarmUpConfig(steps=5, batch_size=2))
    assert result.losses == (pytest.approx(-sum(logprobs) / 3, rel=1e-6),)


def test_several_turns_are_one_sequence_with_loss_on_its_replies(directory_of: Callable[..., Path]) -> None:
    directory = directory_of("llama")
    shown = Demonstration(prompt=(1, 2), reply=(3, 4), later_turns=(((5,), (6,)), ((7, 8), (9,))))
    plain = load_model(directory)
    plain.set_attn_implementation("sdpa")
    ids = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9])
    table = plain(ids[None]).logits[0].log_softmax(-1)
    logprobs = [table[place - 1, ids[place]].item() for place in (2, 3, 5, 8)]
    result = warm_up(load_model(directory), [shown], WarmUpConfig(steps=1, batch_size=1))
    assert result.losses == (pytest.approx(-sum(logprobs) / 4, rel=1e-6),)


def test_it_stops_when_it_is_enough_and_repeats_itself_exactly(directory_of: Callable[..., Path]) -> None:
    directory = directory_of("llama")
    digests = []
    for _ in range(2):
        model = load_model(directory)
        assert len(warm_up(model, copying(), WarmUpConfig(batch_size=4), enough=lambda steps: steps == 3).losses) == 3
        digests.append(weights_digest(model_tensors(model)))
    assert digests[0] == digests[1]


def test_the_bar_shows_steps_and_loss(directory_of: Callable[..., Path]) -> None:
    screen = io.StringIO()
    warm_up(load_model(directory_of("llama")), copying(), WarmUpConfig(steps=2, batch_size=2), console=Console(file=screen, width=100))
    assert "2/2" in screen.getvalue()
    assert "loss" in screen.getvalue()


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ConfigError):
        WarmUpConfig(batch_size=0)
