from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.learner.loss_twins import Token, penalty, ratio, twin

from penstock.errors import ConfigError, InvariantError
from penstock.learner.config import LOSS_NAMES, LossConfig
from penstock.learner.losses import LOSSES, LossInputs, TokenLosses, kl_estimates, loss_named, penalties

CONFIGS = [
    LossConfig(name="ppo_clip", clip_low=0.3, clip_high=0.5),
    LossConfig(name="ppo_clip", dual_clip=2.0),
    LossConfig(name="gspo"),
    LossConfig(name="gspo", clip_low=0.4, clip_high=0.6, dual_clip=3.0),
    LossConfig(name="cispo"),
    LossConfig(name="cispo", clip_low=0.5, clip_high=1.0),
    LossConfig(name="reinforce_tis"),
    LossConfig(name="reinforce_tis", weight_level="sequence", weight_cap=4.0),
    LossConfig(name="icepop"),
    LossConfig(name="icepop", weight_level="sequence", mask_low=0.2, mask_high=3.0),
]
ALL = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.name}-{config.weight_level}-{config.clip_low}-{config.dual_clip}")

finite = st.floats(-8, 0, allow_subnormal=False)
tokens_of = st.lists(
    st.builds(Token, sample=st.integers(0, 3), logprob=finite, behaviour=finite, advantage=st.floats(-5, 5, allow_subnormal=False), reference=finite),
    min_size=1,
    max_size=12,
)


def inputs(tokens: Sequence[Token], *, entropies: Sequence[float] | None = None) -> LossInputs:
    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(token, name) for token in tokens], dtype=torch.float64)

    return LossInputs(
        logprobs_L=column("logprob").requires_grad_(),
        behaviour_logprobs_L=column("behaviour"),
        advantages_L=column("advantage"),
        # Numbers of samples have gaps in a micro-batch.
        sample_ids_L=torch.tensor([7 * token.sample + 2 for token in tokens], dtype=torch.int32),
        reference_logprobs_L=column("reference"),
        entropies_L=None if entropies is None else torch.tensor(entropies, dtype=torch.float64, requires_grad=True),
    )


def clipped_at(found: TokenLosses, place: int) -> set[str]:
    return {bound for bound, where_L in found.clipped.items() if where_L[place]}


@ALL
@settings(max_examples=25)
@given(tokens=tokens_of)
def test_a_loss_equals_its_slow_twin_in_value_gradient_and_clipping(config: LossConfig, tokens: list[Token]) -> None:
    given_inputs = inputs(tokens)
    found = loss_named(config.name)(given_inputs, config)
    found.losses_L.sum().backward()  # type: ignore[no-untyped-call]
    assert given_inputs.logprobs_L.grad is not None
    for place in range(len(tokens)):
        expected = twin(tokens, place, config)
        # On a bound within rounding either side is right.
        assume(all(abs(ratio(token) / bound - 1) > 1e-9 for token in tokens for bound in (*config.ratio_bounds, 2.0, 0.5, 5.0) if bound > 0))
        assert found.losses_L[place].item() == pytest.approx(expected.loss, rel=1e-11, abs=1e-11)
        assert given_inputs.logprobs_L.grad[place].item() == pytest.approx(expected.slope, rel=1e-11, abs=1e-11)
        assert clipped_at(found, place) == expected.clipped


@ALL
@settings(max_examples=25)
@given(tokens=tokens_of)
def test_the_gradient_is_that_of_finite_differences_with_weights_held(config: LossConfig, tokens: list[Token]) -> None:
    step = 1e-6
    given_inputs = inputs(tokens)
    held = given_inputs.logprobs_L.detach().clone()
    config = replace(config, kl_coef=0.3)

    def total(moved: int, by: float) -> float:
        logprobs_L = held.clone()
        logprobs_L[moved] += by
        moved_inputs = replace(given_inputs, logprobs_L=logprobs_L, held_logprobs_L=held)
        added_L = penalties(moved_inputs, config)
        assert added_L is not None
        return float((LOSSES[config.name](moved_inputs, config).losses_L + added_L).sum())

    found, added_L = LOSSES[config.name](given_inputs, config), penalties(given_inputs, config)
    assert added_L is not None
    (found.losses_L + added_L).sum().backward()  # type: ignore[no-untyped-call]
    assert given_inputs.logprobs_L.grad is not None
    for place, token in enumerate(tokens):
        slopes = [(total(place, step) - total(place, 0)) / step, (total(place, 0) - total(place, -step)) / step]
        assume(abs(slopes[0] - slopes[1]) < 1e-2 * (1 + abs(slopes[0])))  # no bound in between
        size = 1 + abs(token.advantage) * math.exp(8)
        assert given_inputs.logprobs_L.grad[place].item() == pytest.approx(sum(slopes) / 2, rel=1e-4, abs=1e-6 * size)


def test_ppo_clip_by_hand() -> None:
    # Ratios 2, 2, 1/2, 1/2, 1 and 4 with bounds 0.8, 1.3 and, for bad tokens, 3.
    ratios, advantages = [2.0, 2.0, 0.5, 0.5, 1.0, 4.0], [1.0, -1.0, 1.0, -1.0, 3.0, -1.0]
    tokens = [Token(sample=0, logprob=math.log(r) - 2, behaviour=-2.0, advantage=a) for r, a in zip(ratios, advantages, strict=True)]
    given_inputs = inputs(tokens)
    found = LOSSES["ppo_clip"](given_inputs, LossConfig(clip_low=0.2, clip_high=0.3, dual_clip=3.0))
    assert found.losses_L.tolist() == pytest.approx([-1.3, 2.0, -0.5, 0.8, -3.0, 3.0])
    assert [clipped_at(found, place) for place in range(6)] == [{"high"}, set(), set(), {"low"}, set(), {"dual"}]
    found.losses_L.sum().backward()  # type: ignore[no-untyped-call]
    # d(-r A)/d logprob = -r A where not clipped, 0 where clipped.
    assert given_inputs.logprobs_L.grad is not None
    assert given_inputs.logprobs_L.grad.tolist() == pytest.approx([0.0, 2.0, -0.5, 0.0, -3.0, 0.0])


def test_gspo_clips_a_sample_whole_by_the_geometric_mean_of_its_ratios() -> None:
    # Sample 0 has ratios 4 and 1, so 2; sample 1 has 1/2 and 2, so 1, and stands between the tokens of the other.
    ratios, samples = [4.0, 0.5, 2.0, 1.0], [0, 1, 1, 0]
    tokens = [Token(sample=s, logprob=math.log(r) - 3, behaviour=-3.0, advantage=1.0) for r, s in zip(ratios, samples, strict=True)]
    given_inputs = inputs(tokens)
    found = LOSSES["gspo"](given_inputs, LossConfig(name="gspo", clip_low=0.5, clip_high=0.5))
    assert found.losses_L.tolist() == pytest.approx([-1.5, -1.0, -1.0, -1.5])
    found.losses_L.sum().backward()  # type: ignore[no-untyped-call]
    assert given_inputs.logprobs_L.grad is not None
    assert given_inputs.logprobs_L.grad.tolist() == pytest.approx([0.0, -1.0, -1.0, 0.0])


def test_gspo_by_samples_is_the_sequence_form_of_the_paper() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    behaviour = torch.tensor([-1.1, -2.2, -0.4], dtype=torch.float64)
    (-2.5 * (logprobs - behaviour).mean().exp()).backward()  # type: ignore[no-untyped-call]
    tokens = [Token(sample=0, logprob=p, behaviour=q, advantage=2.5) for p, q in zip(logprobs.tolist(), behaviour.tolist(), strict=True)]
    given_inputs = inputs(tokens)
    found = LOSSES["gspo"](given_inputs, LossConfig(name="gspo", clip_high=1.0))
    (found.losses_L.sum() / 3).backward()  # type: ignore[no-untyped-call]
    assert given_inputs.logprobs_L.grad is not None and logprobs.grad is not None
    assert given_inputs.logprobs_L.grad.tolist() == pytest.approx(logprobs.grad.tolist(), rel=1e-12)


def test_constant_weights_by_hand() -> None:
    # Ratios 8 and 1/2 of one sample (product 4), 1/4 of another, with logprobs -1, -2 and -4.
    tokens = [
        Token(sample=0, logprob=-1.0, behaviour=-1 - math.log(8), advantage=2.0),
        Token(sample=0, logprob=-2.0, behaviour=-2 + math.log(2), advantage=2.0),
        Token(sample=1, logprob=-4.0, behaviour=-4 + math.log(4), advantage=-1.0),
    ]

    def losses(**settings: object) -> list[float]:
        config = LossConfig(**settings)  # type: ignore[arg-type]
        return LOSSES[config.name](inputs(tokens), config).losses_L.tolist()

    assert losses(name="cispo", clip_low=0.6, clip_high=4.0) == pytest.approx([5 * 2 * 1, 0.5 * 2 * 2, -0.4 * 4])
    assert losses(name="cispo") == pytest.approx([5 * 2 * 1, 0.5 * 2 * 2, -0.25 * 4])
    assert losses(name="reinforce_tis", weight_cap=2.0) == pytest.approx([2 * 2 * 1, 0.5 * 2 * 2, -0.25 * 4])
    assert losses(name="reinforce_tis", weight_cap=3.0, weight_level="sequence") == pytest.approx([3 * 2 * 1, 3 * 2 * 2, -0.25 * 4])
    assert losses(name="icepop", mask_low=0.4) == pytest.approx([0, 0.5 * 2 * 2, 0])
    assert losses(name="icepop", weight_level="sequence") == pytest.approx([4 * 2 * 1, 4 * 2 * 2, 0])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@settings(max_examples=25)
@given(tokens=tokens_of)
def test_penalties_equal_their_slow_twin(estimator: str, tokens: list[Token]) -> None:
    config = LossConfig(kl_coef=0.7, kl_estimator=estimator, entropy_coef=0.2)  # type: ignore[arg-type]
    entropies = [0.1 * place for place in range(len(tokens))]
    given_inputs = inputs(tokens, entropies=entropies)
    found = penalties(given_inputs, config)
    assert found is not None
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert given_inputs.logprobs_L.grad is not None and given_inputs.entropies_L is not None and given_inputs.entropies_L.grad is not None
    for place, token in enumerate(tokens):
        value, slope = penalty(token, entropies[place], config)
        assert found[place].item() == pytest.approx(value, rel=1e-11, abs=1e-11)
        assert given_inputs.logprobs_L.grad[place].item() == pytest.approx(slope, rel=1e-11, abs=1e-11)
    assert given_inputs.entropies_L.grad.tolist() == [-0.2] * len(tokens)


def test_estimates_of_a_kl_have_its_mean_and_its_gradient_over_the_whole_vocabulary() -> None:
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.0, 0.5, -0.5, 0.2], dtype=torch.float64).log_softmax(-1)
    logprobs = logits.log_softmax(-1)
    exact = (logprobs.exp() * (logprobs - reference)).sum()
    (exact_gradient,) = torch.autograd.grad(exact, logits, retain_graph=True)
    nothing = torch.zeros(4, dtype=torch.float64)
    given_inputs = LossInputs(
        logprobs_L=logprobs, behaviour_logprobs_L=nothing, advantages_L=nothing, sample_ids_L=torch.arange(4), reference_logprobs_L=reference
    )
    chances = logprobs.exp().detach()
    for estimator, is_unbiased, is_downhill in (("k1", True, True), ("k2", False, True), ("k3", True, False)):
        mean = (chances * kl_estimates(given_inputs, estimator)).sum()  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(mean, logits, retain_graph=True)
        assert math.isclose(mean.item(), exact.item(), rel_tol=1e-9) is is_unbiased
        assert torch.allclose(gradient, exact_gradient, rtol=1e-9, atol=1e-12) is is_downhill


def test_a_kl_near_the_reference_is_never_negative_in_fp32_either() -> None:
    differences = torch.tensor([1e-4, -1e-4, 2e-4, 3e-5, 0.0])
    near = LossInputs(
        logprobs_L=differences, behaviour_logprobs_L=differences, advantages_L=differences, sample_ids_L=torch.arange(5), reference_logprobs_L=torch.zeros(5)
    )
    # d^2 / 2 up to d^3 / 6.
    np.testing.assert_allclose(kl_estimates(near, "k3"), differences.double().square() / 2, rtol=2e-2, atol=1e-12)


def test_without_coefficients_nothing_is_added() -> None:
    assert penalties(inputs([Token(sample=0, logprob=-1, behaviour=-1, advantage=1)]), LossConfig()) is None


def test_a_kl_without_a_reference_stops() -> None:
    bare = replace(inputs([Token(sample=0, logprob=-1, behaviour=-1, advantage=1)]), reference_logprobs_L=None)
    with pytest.raises(InvariantError, match="no reference logprobs"):
        penalties(bare, LossConfig(kl_coef=0.1))


@ALL
def test_a_ratio_that_would_overflow_has_a_finite_gradient(config: LossConfig) -> None:
    far = [Token(sample=0, logprob=0.0, behaviour=-900.0, advantage=1.0), Token(sample=1, logprob=-900.0, behaviour=0.0, advantage=-1.0, reference=0.0)]
    given_inputs = inputs(far)
    added_L = penalties(given_inputs, LossConfig(kl_coef=0.1))
    assert added_L is not None
    (LOSSES[config.name](given_inputs, config).losses_L + added_L).sum().backward()  # type: ignore[no-untyped-call]
    assert given_inputs.logprobs_L.grad is not None
    assert given_inputs.logprobs_L.grad.isfinite().all()


def test_losses_are_found_by_name_and_the_nearest_is_suggested() -> None:
    assert tuple(LOSSES) == LOSS_NAMES
    assert loss_named("ppo_clip") is LOSSES["ppo_clip"]
    with pytest.raises(ConfigError, match="did you mean 'ppo_clip'"):
        loss_named("ppo-clip")
    with pytest.raises(ConfigError, match="did you mean 'gspo'"):
        LossConfig(name="gsp")


def test_a_loss_of_ones_own_is_named_by_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(given_inputs: LossInputs, config: LossConfig) -> TokenLosses:
        return TokenLosses(losses_L=-float(config.options["scale"]) * given_inputs.advantages_L * given_inputs.logprobs_L)

    module = ModuleType("somebodys_losses")
    module.plain = plain  # type: ignore[attr-defined]
    module.number = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "somebodys_losses", module)
    config = LossConfig(name="somebodys_losses:plain", options={"scale": 2.0})
    found = loss_named(config.name)(inputs([Token(sample=0, logprob=-3, behaviour=-1, advantage=1)]), config)
    assert found.losses_L.tolist() == [6.0]
    for wrong in ("somebodys_losses:plane", "somebodys_losses:number", "no_such_module:plain"):
        with pytest.raises(ConfigError, match=wrong):
            loss_named(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip_low": -0.1},
        {"clip_low": 1.5},
        {"clip_high": float("nan")},
        {"dual_clip": 1.1},
        {"weight_cap": 0.0},
        {"weight_level": "batch"},
        {"mask_low": 1.5},
        {"mask_high": 0.9},
        {"kl_coef": -0.1},
        {"kl_estimator": "k4"},
        {"entropy_coef": float("nan")},
        {"denominator": "mean"},
        {"fixed_denominator": 0.0},
        {"options": {"a": 1.0}},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LossConfig(**wrong)  # type: ignore[arg-type]
