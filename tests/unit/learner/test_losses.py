from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.learner.config import LossConfig
from penstock.learner.losses import LOSSES, LossInputs, loss_named, ppo_clip


def inputs(logprobs: list[float], behaviour: list[float], advantages: list[float]) -> LossInputs:
    return LossInputs(
        logprobs_L=torch.tensor(logprobs, dtype=torch.float64, requires_grad=True),
        behaviour_logprobs_L=torch.tensor(behaviour, dtype=torch.float64),
        advantages_L=torch.tensor(advantages, dtype=torch.float64),
        sample_ids_L=torch.zeros(len(logprobs), dtype=torch.int32),
    )


def ppo_clip_of_one_token(logprob: float, behaviour: float, advantage: float, low: float, high: float) -> float:
    """The numpy twin: one token at a time, straight from the formula."""
    ratio = float(np.exp(logprob - behaviour))
    return -min(ratio * advantage, float(np.clip(ratio, 1 - low, 1 + high)) * advantage)


def test_ppo_clip_by_hand() -> None:
    # Ratios 2, 2, 1/2, 1/2 and 1 with bounds 0.8 and 1.3.
    given_inputs = inputs([math.log(0.4), math.log(0.4), math.log(0.1), math.log(0.1), 0.0], [math.log(0.2)] * 4 + [0.0], [1.0, -1.0, 1.0, -1.0, 3.0])
    found = ppo_clip(given_inputs, LossConfig(clip_low=0.2, clip_high=0.3))
    assert found.losses_L.tolist() == pytest.approx([-1.3, 2.0, -0.5, 0.8, -3.0])
    assert found.clipped_L.tolist() == [True, False, False, True, False]
    found.losses_L.sum().backward()
    # d(-r A)/d logprob = -r A where not clipped, 0 where clipped.
    assert given_inputs.logprobs_L.grad is not None
    assert given_inputs.logprobs_L.grad.tolist() == pytest.approx([0.0, 2.0, -0.5, 0.0, -3.0])


@given(
    st.lists(st.tuples(st.floats(-15, 0), st.floats(-15, 0), st.floats(-5, 5)), min_size=1),
    st.floats(0, 1),
    st.floats(0, 4),
)
def test_ppo_clip_equals_its_numpy_twin(tokens: list[tuple[float, float, float]], low: float, high: float) -> None:
    found = ppo_clip(inputs(*(list(column) for column in zip(*tokens, strict=True))), LossConfig(clip_low=low, clip_high=high))
    expected = [ppo_clip_of_one_token(*token, low, high) for token in tokens]
    assert found.losses_L.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_ratio_that_would_overflow_has_a_finite_gradient() -> None:
    given_inputs = inputs([0.0, -900.0], [-900.0, 0.0], [1.0, 1.0])
    ppo_clip(given_inputs, LossConfig()).losses_L.sum().backward()
    assert given_inputs.logprobs_L.grad is not None
    assert given_inputs.logprobs_L.grad.isfinite().all()


def test_losses_are_found_by_name_and_the_nearest_is_suggested() -> None:
    assert loss_named("ppo_clip") is LOSSES["ppo_clip"]
    with pytest.raises(ConfigError, match="did you mean 'ppo_clip'"):
        loss_named("ppo-clip")


@pytest.mark.parametrize("wrong", [{"clip_low": -0.1}, {"clip_low": 1.5}, {"clip_high": float("nan")}, {"denominator": "mean"}, {"fixed_denominator": 0.0}])
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LossConfig(**wrong)  # type: ignore[arg-type]
