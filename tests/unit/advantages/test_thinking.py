"""RLVCR and CoPO, worked out by hand."""

import math

import numpy as np
import pytest

from penstock.advantages import copo, rlvcr, thinking_advantages

NAN = float("nan")
# Group g: a step with four levels in a trajectory that won, a step that was not expanded in one that lost.
REWARDS = [1.0, 1.0, 1.0, 1.0, 0.0]
GROUP = ["g"] * 5
CONFIDENCE = [0.9, 0.5, 0.3, 0.3, NAN]
COST = [0.0, 50.0, 125.0, 500.0, 0.0]
THINKING = [7, 7, 7, 7, -1]
CHOSEN = [False, False, True, False, True]
LEVEL = [1, 2, 3, 4, 1]


def test_a_level_is_compared_with_the_other_three_and_a_step_counts_once() -> None:
    # A_traj +-1/2, because the step of four rows counts once. Mean confidence 1/2.
    np.testing.assert_allclose(rlvcr(REWARDS, GROUP, CONFIDENCE, COST, THINKING), [0.9, 0.5, 0.3, 0.3, -0.5], atol=1e-15)
    np.testing.assert_allclose(rlvcr(REWARDS, GROUP, CONFIDENCE, COST, THINKING, step_advantage_w=2.0), [1.3, 0.5, 0.1, 0.1, -0.5], atol=1e-15)


def test_thinking_costs_its_share_of_the_most_that_is_counted() -> None:
    # 0.5 - min(cost / 250, 1): 0.5, 0.3, 0, -0.5; with alpha 1 on equal confidence, minus their mean 0.075.
    found = rlvcr(REWARDS, GROUP, [0.5] * 4 + [NAN], COST, THINKING, thinking_cost_alpha=1.0)
    np.testing.assert_allclose(found, [0.925, 0.725, 0.425, -0.075, -0.5], atol=1e-15)
    halved = rlvcr(REWARDS, GROUP, [0.5] * 4 + [NAN], COST, THINKING, thinking_cost_alpha=1.0, cost_max=1000)
    np.testing.assert_allclose(halved[3] - halved[0], -0.5, atol=1e-15)


def test_a_cost_far_beyond_the_most_that_is_counted_overflows_nothing() -> None:
    with np.errstate(all="raise"):
        found = thinking_advantages([0.5] * 4, [0.0, 0.0, 0.0, 1.7e308], [7] * 4, thinking_cost_alpha=1.0, cost_max=1e-300)
    assert found.tolist() == [0.25, 0.25, 0.25, -0.75]


def test_mean_std_norm_divides_both_parts() -> None:
    found = rlvcr(REWARDS, GROUP, CONFIDENCE, COST, THINKING, mode="mean_std_norm")
    episode = 0.5 / (0.5**0.5 + 1e-6)
    # Squares 0.16 + 0 + 0.04 + 0.04 = 0.24, sample variance 0.08.
    spread = 0.08**0.5 + 1e-6
    np.testing.assert_allclose(found, [episode + 0.4 / spread, episode, episode - 0.2 / spread, episode - 0.2 / spread, -episode], rtol=1e-12)


def test_the_thinking_part_alone_is_what_rlvcr_adds() -> None:
    options = {"mode": "mean_std_norm", "thinking_cost_alpha": 0.3}
    both = rlvcr(REWARDS, GROUP, CONFIDENCE, COST, THINKING, base=[0.0] * 5, **options)  # type: ignore[arg-type]
    assert thinking_advantages(CONFIDENCE, COST, THINKING, **options).tolist() == both.tolist()  # type: ignore[arg-type]


def test_a_usual_level_earns_less_under_diversity() -> None:
    # Chosen levels are 3 and 1, so each has half of the steps: A_think times (1 - 1/2) * 0.5 + 0.5 = 0.75.
    found = rlvcr(REWARDS, GROUP, CONFIDENCE, COST, THINKING, chosen=CHOSEN, level=LEVEL, thinking_diversity_w=0.5)
    np.testing.assert_allclose(found, [0.5 + 0.3, 0.5, 0.5 - 0.15, 0.5 - 0.15, -0.5], atol=1e-15)


def test_a_step_whose_level_is_not_known_has_no_part_in_the_shares() -> None:
    # Known levels are 3 and 3 and 1: two thirds for the step of level 3, so its A_think counts 1 - 0.5 * 2/3 times.
    rewards, group, thinking = [*REWARDS, 0.0, 0.0, 1.0], [*GROUP, "g", "g", "g"], [*THINKING, -1, -1, -1]
    confidence, cost, chosen = [*CONFIDENCE, NAN, NAN, NAN], [*COST, 0.0, 0.0, 0.0], [*CHOSEN, True, True, True]
    for unknown in (0, None):
        level = [*LEVEL, 3, unknown, unknown]
        found = rlvcr(rewards, group, confidence, cost, thinking, chosen=chosen, level=level, thinking_diversity_w=0.5, base=[0.0] * 8)
        np.testing.assert_allclose(found[:4], np.array([0.4, 0.0, -0.2, -0.2]) * (1 - 0.5 * 2 / 3), atol=1e-15)
    # Of an expanded step 0 is a level like any other.
    zeros = [3, 2, 0, 1, *LEVEL[4:], 0, 0, 0]
    found = rlvcr(rewards, group, confidence, cost, thinking, chosen=chosen, level=zeros, thinking_diversity_w=1.0, base=[0.0] * 8)
    np.testing.assert_allclose(found[:4], np.array([0.4, 0.0, -0.2, -0.2]) * (1 - 1 / 2), atol=1e-15)


def test_entropies_count_the_other_way_round_negated_or_not() -> None:
    entropies = [0.1, 0.5, 0.7, 0.7, NAN]
    found = rlvcr(REWARDS, GROUP, entropies, COST, THINKING, signal="neg_entropy")
    np.testing.assert_allclose(found, [0.9, 0.5, 0.3, 0.3, -0.5], atol=1e-15)
    negated = rlvcr(REWARDS, GROUP, [-entropy for entropy in entropies], COST, THINKING, signal="neg_entropy")
    assert negated.tolist() == found.tolist()


def test_trajectory_statistics_over_trajectories_steps_or_ready_made() -> None:
    # Trajectory a has three steps (one expanded), b one: over steps the mean is 3/4, over trajectories 1/2.
    rewards, group, thinking = [1.0] * 6 + [0.0], [0] * 7, [5, 5, 5, 5, -1, -1, -1]
    confidence, cost = [0.5] * 4 + [NAN] * 3, [0.0] * 7
    assert rlvcr(rewards, group, confidence, cost, thinking).tolist() == [0.25] * 6 + [-0.75]
    assert rlvcr(rewards, group, confidence, cost, thinking, trajectory=["a"] * 6 + ["b"]).tolist() == [0.5] * 6 + [-0.5]
    ready = [9.0] * 4 + [8.0, 7.0, -6.0]
    assert rlvcr(rewards, group, confidence, cost, thinking, base=ready).tolist() == ready


@pytest.mark.parametrize("confidence", [[0.9, 0.5, 0.3, NAN, NAN], [NAN] * 5])
def test_a_step_with_a_failed_score_keeps_the_trajectory_alone(confidence: list[float]) -> None:
    assert rlvcr(REWARDS, GROUP, confidence, COST, THINKING).tolist() == [0.5] * 4 + [-0.5]
    whole = 0.5 / (0.5**0.5 + 1e-6)
    np.testing.assert_allclose(copo(REWARDS, GROUP, confidence, THINKING), [whole] * 4 + [-whole], rtol=1e-14)


def test_a_step_with_three_levels_keeps_the_trajectory_alone() -> None:
    assert rlvcr([1.0] * 3 + [0.0], [0] * 4, [0.9, 0.5, 0.3, NAN], [0.0] * 4, [7, 7, 7, -1]).tolist() == [0.5] * 3 + [-0.5]


def test_copo_shares_the_advantage_out_by_confidence() -> None:
    # p = 1, 1/3, 0, 0.
    whole = 0.5 / (0.5**0.5 + 1e-6)
    risen = [math.exp(2), math.exp(2 / 3), 1.0, 1.0]
    want = [whole * value / (sum(risen) / 4) for value in risen]
    found = copo(REWARDS, GROUP, CONFIDENCE, THINKING)
    np.testing.assert_allclose(found, [*want, -whole], rtol=1e-12)
    np.testing.assert_allclose(found[:4].mean(), whole, rtol=1e-12)


def test_copo_without_a_range_of_confidence_is_grpo() -> None:
    whole = 0.5 / (0.5**0.5 + 1e-6)
    for spread in (0.0, 1e-6 / 2):
        np.testing.assert_allclose(copo(REWARDS, GROUP, [0.5, 0.5, 0.5, 0.5 + spread, NAN], THINKING), [whole] * 4 + [-whole], rtol=1e-14)


def test_copo_takes_a_ready_advantage_and_trajectories() -> None:
    flat = [0.5] * 4 + [NAN]
    assert copo(REWARDS, GROUP, flat, THINKING, base=[2.0] * 4 + [3.0]).tolist() == [2.0] * 4 + [3.0]
    rewards, thinking = [1.0] * 5 + [0.0], [5, 5, 5, 5, -1, -1]
    over_trajectories = copo(rewards, [0] * 6, [0.5] * 4 + [NAN] * 2, thinking, trajectory=["a"] * 5 + ["b"])
    np.testing.assert_allclose(over_trajectories, [0.5 / (0.5**0.5 + 1e-6)] * 5 + [-0.5 / (0.5**0.5 + 1e-6)], rtol=1e-14)


def test_labels_may_be_words_and_rows_may_interleave() -> None:
    order = [4, 0, 2, 1, 3]
    labels = ["step", "step", "step", "step", -1]
    mixed = rlvcr(*([column[row] for row in order] for column in (REWARDS, GROUP, CONFIDENCE, COST, labels)))
    np.testing.assert_allclose(mixed, np.array([0.9, 0.5, 0.3, 0.3, -0.5])[order], atol=1e-15)


def test_constant_rewards_and_confidence_are_exactly_zero_and_empty_is_empty() -> None:
    assert not rlvcr([0.1] * 8, [0] * 8, [0.3] * 8, [1.0] * 8, [1] * 4 + [2] * 4, thinking_cost_alpha=0.7).any()
    assert rlvcr([], [], [], [], []).shape == (0,)
    assert copo([], [], [], []).shape == (0,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": [1.0, 1.0, 1.0, NAN, 0.0]}, r"rewards\[3\] is nan"),
        ({"rewards": [1.0, 1.0, 1.0, 0.5, 0.0]}, r"rewards\[3\] is 0.5, but row 0 of the same thinking_group has 1.0"),
        ({"group": ["g", "g", "g", "h", "g"]}, r"group\[3\] is 'h', but row 0 of the same thinking_group has 'g'"),
        ({"trajectory": [0, 0, 1, 0, 2]}, r"trajectory\[2\] is 1, but row 0 of the same thinking_group has 0"),
        ({"confidence": [0.9, math.inf, 0.3, 0.3, NAN]}, r"confidence\[1\] is inf"),
        ({"confidence": [0.9]}, "confidence has 1 values for 5 rows"),
        ({"cost": [0.0, -1.0, 0.0, 0.0, 0.0]}, r"cost\[1\] is -1.0"),
        ({"cost": [0.0, NAN, 0.0, 0.0, 0.0]}, r"cost\[1\] is nan"),
        ({"thinking_group": [7, 7]}, "thinking_group has 2 labels for 5 rows"),
        ({"base": [1.0]}, "base has 1 values for 5 rows"),
        ({"base": [1.0, 2.0, 1.0, 1.0, 0.0]}, r"base\[1\] is 2.0, but row 0 of the same thinking_group has 1.0"),
        ({"signal": "entropy"}, "signal is 'entropy', did you mean 'neg_entropy'"),
        ({"signal": "neg_entropy", "confidence": [0.1, -0.2, 0.3, 0.3, NAN]}, r"confidence\[1\] is -0.2, but row 0 is above 0"),
        ({"mode": "std"}, "mode is 'std'"),
        ({"cost_max": 0}, "cost_max is 0; it must be above 0"),
        ({"thinking_diversity_w": 1.5}, "thinking_diversity_w is 1.5; it must lie in 0 to 1"),
        ({"thinking_diversity_w": 0.5}, "thinking_diversity_w is 0.5, which needs chosen and level; chosen is None"),
        ({"thinking_diversity_w": 0.5, "chosen": CHOSEN}, "level is None"),
        ({"thinking_diversity_w": 0.5, "chosen": [True] * 5, "level": LEVEL}, "chosen marks 4 rows of the thinking_group of row 0; it must mark one"),
        ({"thinking_diversity_w": 0.5, "chosen": [2] * 5, "level": LEVEL}, r"chosen\[0\] is 2.0; it must be true or false"),
        ({"step_advantage_w": NAN}, "step_advantage_w is nan"),
        ({"thinking_cost_alpha": math.inf}, "thinking_cost_alpha is inf"),
    ],
)
def test_bad_input_is_refused_by_argument_row_and_value(change: dict[str, object], message: str) -> None:
    columns: dict[str, object] = {"rewards": REWARDS, "group": GROUP, "confidence": CONFIDENCE, "cost": COST, "thinking_group": THINKING}
    with pytest.raises(ValueError, match=message):
        rlvcr(**(columns | change))  # type: ignore[arg-type]
