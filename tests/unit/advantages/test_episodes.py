"""Estimators on whole episodes besides GRPO and RLOO, worked out by hand."""

import numpy as np
import pytest

from penstock.advantages import dr_grpo, grpo, maxrl, opo, pass_at_k_rewards, reinforce_pp, remax, slime_normalize

LARGEST = float(np.finfo(np.float64).max)


def test_dr_grpo_centres_and_does_not_divide() -> None:
    assert dr_grpo([4.0, 1.0, 0.0, 1.0], ["a", "b", "a", "b"]).tolist() == [2.0, 0.0, -2.0, 0.0]


def test_reinforce_pp_normalises_over_the_whole_batch() -> None:
    # Mean 1, squares 0 + 1 + 4 + 1 = 6, sample variance 2.
    spread = 2**0.5 + 1e-6
    np.testing.assert_allclose(reinforce_pp([1.0, 0.0, 3.0, 0.0], [0, 0, 1, 1]), [0.0, -1 / spread, 2 / spread, -1 / spread], rtol=1e-14)


def test_reinforce_pp_with_group_baseline_divides_by_the_spread_of_all_deviations() -> None:
    # Deviations +-1/2 and +-3/2; squares 2 * 1/4 + 2 * 9/4 = 5, sample variance 5/3.
    spread = (5 / 3) ** 0.5 + 1e-6
    found = reinforce_pp([1.0, 3.0, 0.0, 0.0], ["a", "b", "a", "b"], baseline="group")
    np.testing.assert_allclose(found, np.array([0.5, 1.5, -0.5, -1.5]) / spread, rtol=1e-14)


def test_a_constant_group_is_exactly_zero_under_the_group_baseline() -> None:
    found = reinforce_pp([0.1] * 7 + [1.0, 0.0], [0] * 7 + [1, 1], baseline="group")
    assert not found[:7].any()
    assert found[7] > 0


def test_reinforce_pp_is_finite_for_huge_and_for_single_rows() -> None:
    np.testing.assert_allclose(reinforce_pp([LARGEST, -LARGEST], [0, 1]), [0.5**0.5, -(0.5**0.5)], rtol=1e-14)
    np.testing.assert_allclose(reinforce_pp([LARGEST, -LARGEST, 1.0], [0, 0, 1], baseline="group"), [1.0, -1.0, 0.0], rtol=1e-14)
    assert reinforce_pp([5.0], [0]).tolist() == [0.0]


def test_remax_subtracts_the_greedy_reward_of_the_same_problem() -> None:
    assert remax([1.0, 0.0, 0.25], [0, 0, 1], [0.5, 0.5, 1.0]).tolist() == [0.5, -0.5, -0.75]
    assert remax([LARGEST], [0], [-LARGEST]).tolist() == [LARGEST]


def test_opo_weighs_the_baseline_by_length() -> None:
    # Baseline of x: (3 * 1 + 1 * 0) / 4; of y: (1 * 2 + 1 * 0) / 2.
    np.testing.assert_allclose(opo([1.0, 2.0, 0.0, 0.0], ["x", "y", "x", "y"], [3, 1, 1, 1]), [0.25, 1.0, -0.75, -1.0], rtol=1e-15)


def test_opo_with_equal_lengths_is_dr_grpo_and_without_tokens_is_zero() -> None:
    rewards, group = [1.0, 0.25, 0.5, 7.0, 3.0], [0, 0, 0, 1, 1]
    np.testing.assert_allclose(opo(rewards, group, [9] * 5), dr_grpo(rewards, group), rtol=1e-14)
    assert opo(rewards, group, [0, 0, 0, 1, 1])[:3].tolist() == [0.0, 0.0, 0.0]


def test_maxrl_divides_by_the_mean_reward() -> None:
    # One success of four: mean 1/4. Three of four: mean 3/4. None: nothing to learn from.
    hard = maxrl([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0], [0] * 4 + [1] * 4 + [2] * 2)
    np.testing.assert_allclose(hard, [3.0, -1.0, -1.0, -1.0, 1 / 3, 1 / 3, 1 / 3, -1.0, 0.0, 0.0], rtol=1e-15)
    np.testing.assert_allclose(maxrl([LARGEST, 0.0, 5e-324, 0.0], [0, 0, 1, 1]), [1.0, -1.0, 1.0, -1.0], rtol=1e-14)


def test_slime_normalises_rewards_between_zero_and_one_and_passes_the_rest() -> None:
    # 1, 0, 0.5: mean 1/2, population variance 1/6.
    spread = (1 / 6) ** 0.5 + 1e-8
    found = slime_normalize([1.0, -1.0, 0.0, 0.5, 2.0], ["a"] * 5)
    np.testing.assert_allclose(found, [0.5 / spread, -1.0, -0.5 / spread, 0.0, 2.0], rtol=1e-14)


def test_slime_zero_constant_and_invalid_groups() -> None:
    assert slime_normalize([0.0, 0.0, 0.3, 0.3, -1.0, 7.0, 1.0], [0, 0, 1, 1, 2, 2, 3]).tolist() == [0.0, 0.0, 0.0, 0.0, -1.0, 7.0, 0.0]
    # A spread below 1e-8 is none.
    assert slime_normalize([0.5, 0.5 + 1e-9], [0, 0]).tolist() == [0.0, 0.0]


def test_the_best_of_k_counts() -> None:
    # Rewards 3, 1, 2 and teams of 2. For 3: always 3. For 1: the other is 3 or 2. For 2: the other is 3 or 1.
    assert pass_at_k_rewards([3.0, 1.0, 2.0], [0, 0, 0], k=2).tolist() == [3.0, 2.5, 2.5]
    # 2 successes of 5 and teams of 3: a failure misses both with C(2, 2) / C(4, 2) = 1/6.
    np.testing.assert_allclose(pass_at_k_rewards([1.0, 0.0, 0.0, 1.0, 0.0], [0] * 5, k=3), [1, 5 / 6, 5 / 6, 1, 5 / 6], rtol=1e-15)


def test_teams_of_one_change_nothing_and_a_small_group_is_one_team() -> None:
    assert pass_at_k_rewards([3.0, 1.0], [0, 0], k=1).tolist() == [3.0, 1.0]
    assert pass_at_k_rewards([3.0, 1.0, 4.0], [0, 0, 1], k=9).tolist() == [3.0, 3.0, 4.0]


def test_shaping_leaves_equal_rewards_equal_so_that_a_constant_group_stays_worthless() -> None:
    rewards, group = [0.1] * 6 + [0.1, 0.7, 0.1, 0.3, 0.7, 0.1], [0] * 6 + [1] * 6
    shaped = pass_at_k_rewards(rewards, group, k=3)
    assert shaped[:6].tolist() == [0.1] * 6
    assert len(set(shaped[6:].tolist())) == 3
    assert not grpo(shaped, group)[:6].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reinforce_pp([1.0, np.nan], [0, 0]), r"rewards\[1\] is nan"),
        (lambda: reinforce_pp([1.0], [0], baseline="gruop"), "baseline is 'gruop', did you mean 'group'"),
        (lambda: remax([1.0], [0], [np.inf]), r"greedy_rewards\[0\] is inf"),
        (lambda: remax([1.0], [0], [1.0, 2.0]), "greedy_rewards has 2 values for 1 rows"),
        (lambda: remax([1.0], [0, 1], [1.0]), "group has 2 labels for 1 rows"),
        (lambda: opo([1.0, 1.0], [0, 0], [3, -1]), r"lengths\[1\] is -1.0; it must be 0 or more"),
        (lambda: opo([1.0], [0], []), "lengths has 0 values for 1 rows"),
        (lambda: maxrl([1.0, -0.5], [0, 0]), r"rewards\[1\] is -0.5; it must be 0 or more"),
        (lambda: slime_normalize([np.nan], [0]), r"rewards\[0\] is nan"),
        (lambda: dr_grpo([1.0], []), "group has 0 labels for 1 rows"),
        (lambda: pass_at_k_rewards([1.0], [0], k=0), "k is 0; it must be an integer, 1 or more"),
        (lambda: pass_at_k_rewards([1.0], [0], k=2.0), "k is 2.0"),  # type: ignore[arg-type]
        (lambda: pass_at_k_rewards([np.inf], [0], k=2), r"rewards\[0\] is inf"),
    ],
)
def test_bad_input_is_refused_by_argument_row_and_value(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


def test_empty_input_gives_empty_output() -> None:
    assert all(
        found.shape == (0,) for found in (dr_grpo([], []), reinforce_pp([], []), remax([], [], []), opo([], [], []), maxrl([], []), slime_normalize([], []))
    )
    assert reinforce_pp([], [], baseline="group").shape == (0,)
    assert pass_at_k_rewards([], [], k=4).shape == (0,)
