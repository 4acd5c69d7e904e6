"""Returns, GAE and GiGPO on columns of steps, worked out by hand."""

import numpy as np
import pytest

from penstock.advantages import discounted_returns, gae, gigpo

LARGEST = float(np.finfo(np.float64).max)


def test_returns_run_backwards_inside_each_trajectory() -> None:
    # a: 1, 0, 4 gives 1 + 0.5 (0 + 0.5 * 4) = 2, 2, 4. b: 2, 2 gives 3, 2.
    assert discounted_returns([1.0, 2.0, 0.0, 4.0, 2.0], ["a", "b", "a", "a", "b"], gamma=0.5).tolist() == [2.0, 3.0, 2.0, 4.0, 2.0]


def test_a_long_trajectory_equals_the_loop_over_it() -> None:
    rewards = np.random.default_rng(3).normal(size=1000)
    rest, want = 0.0, np.zeros(1000)
    for step in reversed(range(1000)):
        rest = want[step] = rewards[step] + 0.95 * rest
    np.testing.assert_allclose(discounted_returns(rewards, np.zeros(1000, int), gamma=0.95), want, rtol=1e-12, atol=1e-12)


def test_returns_at_the_ends_of_gamma_and_of_floats() -> None:
    assert discounted_returns([1.0, 2.0, 3.0], [0, 0, 0], gamma=0.0).tolist() == [1.0, 2.0, 3.0]
    assert discounted_returns([1.0, 2.0, 3.0], [0, 0, 0], gamma=1.0).tolist() == [6.0, 5.0, 3.0]
    assert discounted_returns([LARGEST, LARGEST, -LARGEST], [0, 0, 0], gamma=1.0).tolist() == [LARGEST, 0.0, -LARGEST]
    assert discounted_returns([], [], gamma=0.9).shape == (0,)


def test_equal_futures_have_bit_equal_returns() -> None:
    rewards, trajectory = [0.3, 0.1, 0.7, 0.2, 0.1, 0.7, 0.2], [0, 0, 0, 0, 1, 1, 1]
    found = discounted_returns(rewards, trajectory, gamma=0.95)
    assert found[1:4].tolist() == found[4:].tolist()


def test_gae_between_one_step_errors_and_whole_returns() -> None:
    rewards, values = [0.0, 0.0, 1.0], [0.5, 0.5, 0.5]
    # Errors: 0 + 0.5 - 0.5 = 0, 0, and 1 - 0.5 = 0.5.
    assert gae(rewards, [0] * 3, values, lam=0.0).total.tolist() == [0.0, 0.0, 0.5]
    assert gae(rewards, [0] * 3, values, lam=1.0).total.tolist() == [0.5, 0.5, 0.5]
    half = gae(rewards, [0] * 3, values, lam=0.5)
    assert half.total.tolist() == [0.125, 0.25, 0.5]
    assert half.returns.tolist() == [0.625, 0.75, 1.0]


def test_gae_goes_on_from_the_bootstrap_of_the_last_row_only() -> None:
    cut_off = gae([0.0, 0.0], [0, 0], [0.0, 0.0], gamma=0.5, lam=1.0, bootstrap=[100.0, 4.0])
    assert cut_off.total.tolist() == [1.0, 2.0]


def test_gae_of_huge_values_is_finite() -> None:
    found = gae([LARGEST, LARGEST], [0, 0], [-LARGEST, LARGEST], lam=1.0)
    assert found.total.tolist() == [LARGEST, 0.0]
    assert np.isfinite(found.returns).all()


# Two trajectories from the hall. "win" goes hall, kitchen, hall, shed and gets 1 at the end; "lose" goes hall, cellar and gets nothing.
REWARDS = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
TRAJECTORY = ["win", "lose", "win", "lose", "win", "win"]
ANCHOR = ["hall", "hall", "kitchen", "cellar", "hall", "shed"]


def test_gigpo_compares_episodes_and_steps_from_the_same_state() -> None:
    found = gigpo(REWARDS, TRAJECTORY, ["g"] * 6, ANCHOR, gamma=0.5)
    assert found.returns.tolist() == [0.125, 0.0, 0.25, 0.0, 0.5, 1.0]
    assert found.episode.tolist() == [0.5, -0.5, 0.5, -0.5, 0.5, 0.5]
    # The hall was left three times, with returns 1/8, 0 and 1/2: mean 5/24.
    hall = [1 / 8 - 5 / 24, -5 / 24, 1 / 2 - 5 / 24]
    np.testing.assert_allclose(found.step, [hall[0], hall[1], 0.0, 0.0, hall[2], 0.0], atol=1e-16)
    np.testing.assert_allclose(found.total, found.episode + found.step, atol=1e-16)


def test_both_ways_to_combine() -> None:
    plain = gigpo(REWARDS, TRAJECTORY, ["g"] * 6, ANCHOR)
    np.testing.assert_allclose(gigpo(REWARDS, TRAJECTORY, ["g"] * 6, ANCHOR, w=3.0).total, plain.episode + 3 * plain.step, atol=1e-15)
    omega = gigpo(REWARDS, TRAJECTORY, ["g"] * 6, ANCHOR, combine="omega", omega=0.25)
    np.testing.assert_allclose(omega.total, 0.25 * plain.episode + 0.75 * plain.step, atol=1e-15)


def test_mean_std_norm_divides_both_parts() -> None:
    found = gigpo([1.0, 0.0], ["a", "b"], [0, 0], ["hall", "hall"], norm="mean_std_norm")
    unit = 0.5 / (0.5**0.5 + 1e-6)
    np.testing.assert_allclose(found.episode, [unit, -unit], rtol=1e-14)
    np.testing.assert_allclose(found.step, [unit, -unit], rtol=1e-14)


def test_statistics_over_trajectories_or_over_steps() -> None:
    # A success of one step against a failure of four.
    rewards, trajectory, anchor = [1.0, 0.0, 0.0, 0.0, 0.0], [0, 1, 1, 1, 1], [None] * 5
    assert gigpo(rewards, trajectory, [0] * 5, anchor).episode.tolist() == [0.5, -0.5, -0.5, -0.5, -0.5]
    np.testing.assert_allclose(gigpo(rewards, trajectory, [0] * 5, anchor, stats_over="steps").episode, [0.8, -0.2, -0.2, -0.2, -0.2], rtol=1e-15)


def test_a_group_of_one_trajectory_is_zero_or_its_raw_score() -> None:
    rewards, trajectory, group = [1.0, 2.0, 5.0, 0.0], ["a", "a", "b", "c"], [0, 0, 1, 1]
    anchor = [None] * 4
    assert gigpo(rewards, trajectory, group, anchor).episode.tolist() == [0.0, 0.0, 2.5, -2.5]
    assert gigpo(rewards, trajectory, group, anchor, singleton="raw").episode.tolist() == [3.0, 3.0, 2.5, -2.5]
    assert gigpo(rewards, trajectory, group, anchor, singleton="raw", stats_over="steps").episode.tolist() == [3.0, 3.0, 2.5, -2.5]


def test_scores_may_be_given_instead_of_the_sum_of_rewards() -> None:
    found = gigpo([0.0, 0.0, 0.0], ["a", "a", "b"], [0, 0, 0], [None] * 3, scores=[4.0, 4.0, 2.0])
    assert found.episode.tolist() == [1.0, 1.0, -1.0]


def test_the_same_state_in_another_group_and_no_state_are_not_compared() -> None:
    found = gigpo([1.0, 0.0, 7.0, 9.0], [0, 1, 2, 3], ["x", "x", "y", "y"], ["hall", "hall", "hall", None])
    assert found.step.tolist() == [0.5, -0.5, 0.0, 0.0]
    assert gigpo([1.0, 0.0], [0, 1], [0, 0], [None, None]).step.tolist() == [0.0, 0.0]


def test_many_rows_are_the_same_in_any_order_of_trajectories() -> None:
    rng = np.random.default_rng(1)
    num_rows = 70_000
    group = np.sort(rng.integers(0, 900, num_rows)) * 3
    trajectory = group * 10 + rng.integers(0, 4, num_rows)
    anchor = [None if room == 9 else f"room {room}" for room in rng.integers(0, 10, num_rows).tolist()]
    rewards = rng.normal(size=num_rows)
    whole = gigpo(rewards, trajectory, group, anchor)
    order = np.argsort(rng.permutation(4)[trajectory % 4], kind="stable")
    mixed = gigpo(rewards[order], trajectory[order], group[order], [anchor[row] for row in order])
    for name in ("total", "episode", "step", "returns"):
        np.testing.assert_allclose(getattr(mixed, name), getattr(whole, name)[order], atol=1e-12)
    with pytest.raises(ValueError, match=r"anchor\[69999\] is \{1\}, which cannot be compared"):
        gigpo(rewards, trajectory, group, [*anchor[:-1], {1}])


def test_huge_rewards_stay_finite() -> None:
    found = gigpo([LARGEST, LARGEST, -LARGEST, -LARGEST], [0, 0, 1, 1], [0] * 4, ["s", "t", "s", "t"], gamma=1.0, w=LARGEST)
    assert all(np.isfinite(part).all() for part in (found.total, found.episode, found.step, found.returns))
    assert found.total.tolist() == [LARGEST, LARGEST, -LARGEST, -LARGEST]


def test_empty_input_gives_empty_output() -> None:
    empty = gigpo([], [], [], [])
    assert (empty.total.shape, empty.step.shape, gae([], [], []).total.shape) == ((0,), (0,), (0,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step_rewards": [1.0, np.nan, 0.0]}, r"step_rewards\[1\] is nan"),
        ({"step_rewards": [1.0, 0.0]}, "trajectory has 3 labels for 2 rows"),
        ({"anchor": ["a", "b"]}, "anchor has 2 observations for 3 rows"),
        ({"anchor": ["a", {1, 2}, "b"]}, r"anchor\[1\] is \{1, 2\}, which cannot be compared: set is not JSON-like"),
        ({"group": [0, 1, 1]}, r"group\[1\] is 1, but row 0 of the same trajectory has 0"),
        ({"scores": [1.0, 2.0, 0.0]}, r"scores\[1\] is 2.0, but row 0 of the same trajectory has 1.0"),
        ({"scores": [1.0]}, "scores has 1 values for 3 rows"),
        ({"gamma": 1.01}, "gamma is 1.01; it must lie in 0 to 1"),
        ({"omega": -0.1}, "omega is -0.1; it must lie in 0 to 1"),
        ({"w": np.inf}, "w is inf; it must be a finite number"),
        ({"norm": "mean_stdnorm"}, "norm is 'mean_stdnorm', did you mean 'mean_std_norm'"),
        ({"combine": "add"}, "combine is 'add', did you mean 'additive'"),
        ({"stats_over": "step"}, "stats_over is 'step', did you mean 'steps'"),
        ({"singleton": "one"}, "singleton is 'one'"),
        ({"similarity": 1.5}, "similarity is 1.5; it must lie in 0 to 1"),
        ({"similarity": "high"}, "similarity is 'high'"),
    ],
)
def test_bad_input_is_refused_by_argument_row_and_value(change: dict[str, object], message: str) -> None:
    columns: dict[str, object] = {"step_rewards": [1.0, 0.0, 0.0], "trajectory": ["a", "a", "b"], "group": [0, 0, 0], "anchor": ["s", "t", "s"]}
    with pytest.raises(ValueError, match=message):
        gigpo(**(columns | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: discounted_returns([np.inf], [0], gamma=0.5), r"rewards\[0\] is inf"),
        (lambda: discounted_returns([1.0], [0], gamma=np.nan), "gamma is nan"),
        (lambda: gae([1.0], [0], [np.nan]), r"values\[0\] is nan"),
        (lambda: gae([1.0], [0], []), "values has 0 values for 1 rows"),
        (lambda: gae([1.0], [0], [0.0], lam=2.0), "lam is 2.0"),
        (lambda: gae([1.0], [0, 1], [0.0]), "trajectory has 2 labels for 1 rows"),
        (lambda: gae([1.0], [0], [0.0], bootstrap=[np.inf]), r"bootstrap\[0\] is inf"),
    ],
)
def test_bad_input_of_returns_and_gae(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
