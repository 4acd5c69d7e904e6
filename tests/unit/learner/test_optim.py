from __future__ import annotations

import math

import pytest
import torch

from penstock.errors import ConfigError
from penstock.learner.config import GateConfig, LearnerConfig
from penstock.learner.optim import adamw, first_non_finite, global_norm, zero_moments
from penstock.models import weights_digest


def test_adamw_rounds_exactly_as_torchs_own() -> None:
    torch.manual_seed(0)
    config = LearnerConfig(lr=1e-2, warmup_updates=0, weight_decay=0.1)
    weights = {"a": torch.randn(5, 7), "b": torch.randn(3)}
    parameters = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in weights.items()}
    theirs = torch.optim.AdamW(parameters.values(), lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, foreach=False)
    moments = zero_moments(weights)
    for update in range(5):
        gradients = {name: torch.randn_like(tensor) for name, tensor in weights.items()}
        for name, parameter in parameters.items():
            parameter.grad = gradients[name].clone()
        theirs.step()
        weights, moments = adamw(weights, gradients, moments, config=config, num_applied=update)
        for name, parameter in parameters.items():
            assert torch.equal(weights[name], parameter.detach())


def test_adamw_leaves_what_it_was_given_untouched() -> None:
    weights, gradients = {"a": torch.ones(3)}, {"a": torch.full((3,), 2.0)}
    moments = zero_moments(weights)
    new_weights, new_moments = adamw(weights, gradients, moments, config=LearnerConfig(), num_applied=0)
    assert weights["a"].tolist() == [1, 1, 1] and gradients["a"].tolist() == [2, 2, 2] and moments.first["a"].tolist() == [0, 0, 0]
    assert weights_digest(new_weights) != weights_digest(weights)
    assert new_moments.first["a"].tolist() == pytest.approx([0.2] * 3)
    assert new_moments.second["a"].tolist() == pytest.approx([0.04] * 3)


def test_the_first_step_is_the_warmed_up_rate_times_the_sign() -> None:
    weights, gradients = {"a": torch.zeros(2)}, {"a": torch.tensor([0.5, -8.0])}
    new, _ = adamw(weights, gradients, zero_moments(weights), config=LearnerConfig(lr=1.0, warmup_updates=4), num_applied=0)
    assert new["a"].tolist() == pytest.approx([-0.25, 0.25])


def test_the_global_norm_does_not_overflow() -> None:
    assert global_norm({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}) == 5.0
    assert global_norm({"a": torch.tensor([3e38, 3e38])}) == pytest.approx(3e38 * math.sqrt(2), rel=1e-6)


def test_non_finite_tensors_are_named() -> None:
    fine = {"a": torch.ones(2), "b": torch.tensor([1.0, 3e38])}
    assert first_non_finite(fine) is None
    assert first_non_finite({**fine, "c": torch.tensor([1.0, math.nan])}) == "c"
    assert first_non_finite({**fine, "a": torch.tensor([math.inf, 0.0])}) == "a"


WRONG = {
    "lr": -1.0,
    "betas": (0.9, 1.0),
    "eps": 0.0,
    "weight_decay": -1.0,
    "warmup_updates": -1,
    "clip_grad": 0.0,
    "micro_batch_tokens": 0,
    "temperature": math.nan,
    "threads": 0,
}


@pytest.mark.parametrize("key", WRONG)
def test_impossible_settings_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"learner.{key} "):
        LearnerConfig(**{key: WRONG[key]})  # type: ignore[arg-type]


def test_a_gate_needs_bounds_in_order() -> None:
    with pytest.raises(ConfigError):
        GateConfig(p999_limit=1e-3, max_limit=1e-4)
