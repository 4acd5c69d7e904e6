from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from penstock.models import load_model, scores, token_logprobs, token_scores


def test_scores_are_log_softmax_and_entropy_after_temperature(directory_of: Callable[..., Path]) -> None:
    model = load_model(directory_of("llama"), dtype=torch.float64)
    hidden = torch.randn(5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([3, 0, 63, 9, 9])
    found = token_scores(model, hidden, targets, temperature=0.5)
    probabilities = torch.softmax(model.lm_head(hidden) * 2, -1)
    for place in range(5):
        assert found.logprobs_T[place].item() == pytest.approx(probabilities[place, targets[place]].log().item(), abs=1e-12)
        assert found.entropies_T[place].item() == pytest.approx(-sum(p.item() * p.log().item() for p in probabilities[place]), abs=1e-12)
    assert not found.entropies_T.requires_grad


def test_chunks_of_logits_change_neither_scores_nor_gradients(directory_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(directory_of("llama"), dtype=torch.float64)
    hidden = torch.randn(7, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets = torch.arange(7)

    def run() -> tuple[torch.Tensor, ...]:
        found = token_scores(model, hidden, targets)
        gradients = torch.autograd.grad((found.logprobs_T * torch.arange(7)).sum(), (hidden, model.lm_head.weight))
        return found.logprobs_T, found.entropies_T, *gradients

    whole = run()
    monkeypatch.setattr(scores, "_LOGITS_AT_ONCE", 3 * 64)
    for at_once, in_chunks in zip(whole, run(), strict=True):
        torch.testing.assert_close(in_chunks, at_once, rtol=1e-12, atol=1e-12)


def test_logprobs_alone_are_those_of_the_scores_to_the_bit(directory_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(directory_of("llama"))
    hidden = torch.randn(7, 32, generator=torch.Generator().manual_seed(0))
    for at_once in (scores._LOGITS_AT_ONCE, 3 * 64):
        monkeypatch.setattr(scores, "_LOGITS_AT_ONCE", at_once)
        found = token_logprobs(model, hidden, torch.arange(7), temperature=0.7)
        assert torch.equal(found, token_scores(model, hidden, torch.arange(7), temperature=0.7).logprobs_T.detach())
        assert not found.requires_grad


def test_entropies_carry_a_gradient_when_asked_also_in_chunks(directory_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(directory_of("llama"), dtype=torch.float64)
    hidden = torch.randn(7, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    logprobs = (model.lm_head(hidden) / 0.7).log_softmax(-1)
    expected = torch.autograd.grad(-(logprobs.exp() * logprobs).sum(), (hidden, model.lm_head.weight))
    for at_once in (scores._LOGITS_AT_ONCE, 3 * 64):
        monkeypatch.setattr(scores, "_LOGITS_AT_ONCE", at_once)
        found = token_scores(model, hidden, torch.arange(7), temperature=0.7, entropy_gradient=True)
        for gradient, wanted in zip(torch.autograd.grad(found.entropies_T.sum(), (hidden, model.lm_head.weight)), expected, strict=True):
            torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        assert not token_scores(model, hidden, torch.arange(7), entropy_gradient=True).entropies_T.requires_grad
