import numpy as np
import pytest

from penstock.advantages import grpo

LARGEST = float(np.finfo(np.float64).max)


def test_two_interleaved_groups_worked_out_by_hand() -> None:
    # Group 0: rewards 1, 0, 0, 1: mean 1/2, squares 4 * 1/4 = 1, sample variance 1/3. Group 1: rewards 4, 0: mean 2, variance 8.
    rewards = [1.0, 4.0, 0.0, 0.0, 0.0, 1.0]
    group = [0, 1, 0, 1, 0, 0]
    half, two = 0.5 / (3**-0.5 + 1e-6), 2.0 / (8**0.5 + 1e-6)
    np.testing.assert_allclose(grpo(rewards, group), [half, two, -half, -two, -half, half], rtol=1e-14)


def test_population_std_divides_by_the_number_of_members() -> None:
    np.testing.assert_allclose(grpo([1.0, 0.0, 0.0, 1.0], [0] * 4, eps=0.0, ddof=0), [1.0, -1.0, -1.0, 1.0], rtol=1e-15)


def test_mean_norm_only_centres() -> None:
    assert grpo([3.0, 1.0, 2.0], ["g"] * 3, norm="mean_norm").tolist() == [1.0, -1.0, 0.0]


@pytest.mark.parametrize("norm", ["mean_std_norm", "mean_norm"])
@pytest.mark.parametrize("reward", [0.1, -1e308, 5e-324, 0.0, 1 / 3])
def test_a_constant_group_is_exactly_zero_where_a_naive_mean_is_not(norm: str, reward: float) -> None:
    assert not grpo([reward] * 10, [0] * 10, norm=norm).any()
    assert not grpo([reward] * 10, [0] * 10, norm=norm, eps=0.0).any()


def test_a_single_member_is_exactly_zero() -> None:
    assert grpo([0.3, 7.0, 0.4], [0, 1, 0])[1] == 0.0


def test_a_group_no_bigger_than_ddof_has_no_spread() -> None:
    assert grpo([1.0, 0.0], [0, 0], ddof=2).tolist() == [0.0, 0.0]


def test_huge_rewards_stay_finite_and_right() -> None:
    np.testing.assert_allclose(grpo([LARGEST, -LARGEST], [0, 0]), [0.5**0.5, -(0.5**0.5)], rtol=1e-14)
    # 7/4 of the largest float from the mean: more than a float holds, so it is the largest one.
    saturated = grpo([LARGEST] + [-LARGEST] * 7, [0] * 8, norm="mean_norm")
    assert saturated[0] == LARGEST
    np.testing.assert_allclose(saturated[1:], -LARGEST / 4, rtol=1e-15)


def test_a_huge_group_does_not_disturb_a_small_one() -> None:
    mixed = grpo([1e308, 1e-3, -1e308, 3e-3], ["huge", "small", "huge", "small"], norm="mean_norm")
    np.testing.assert_allclose(mixed, [1e308, -1e-3, -1e308, 1e-3], rtol=1e-15)


def test_tiny_rewards_are_told_apart_without_eps() -> None:
    np.testing.assert_allclose(grpo([1e-200, 3e-200], [0, 0], eps=0.0), [-(0.5**0.5), 0.5**0.5], rtol=1e-14)


def test_empty_input_gives_empty_output() -> None:
    empty = grpo([], [])
    assert empty.shape == (0,)
    assert empty.dtype == np.float64


def test_input_arrays_are_left_alone() -> None:
    rewards_N = np.array([1.0, 0.0])
    grpo(rewards_N, np.array([0, 0]))
    assert rewards_N.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([0.0, float("nan")], r"rewards\[1\] is nan"),
        ([float("-inf"), 0.0], r"rewards\[0\] is -inf"),
        ([1.0, None], r"rewards\[1\] is None"),
        ([1.0, "2"], r"rewards\[1\] is '2'"),
        ([1.0, 1j], r"rewards\[1\] is 1j"),
        ([1, 10**400], r"rewards\[1\] is a number beyond"),
        ([[1.0], [2.0]], r"rewards must have one axis, got shape \(2, 1\)"),
        ([1.0, [2.0, 3.0]], r"rewards\[1\] is \[2.0, 3.0\]; it must be a finite number"),
        ([1.0, 2.0, 3.0], r"group has 2 labels for 3 rows"),
        ([], r"group has 2 labels for 0 rows"),
    ],
)
def test_bad_rewards_are_refused_by_name_row_and_value(rewards: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grpo(rewards, [0, 0])  # type: ignore[arg-type]


def test_an_unknown_norm_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="norm is 'mean_sdt_norm', did you mean 'mean_std_norm'"):
        grpo([1.0], [0], norm="mean_sdt_norm")


@pytest.mark.parametrize(
    "option", [{"eps": -1.0}, {"eps": float("nan")}, {"eps": 10**400}, {"ddof": -1}, {"ddof": 0.5}, {"ddof": 1.0}, {"ddof": True}, {"ddof": 10**400}]
)
def test_impossible_options_are_refused(option: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))} is"):
        grpo([1.0], [0], **option)  # type: ignore[arg-type]


def test_booleans_and_integers_are_rewards() -> None:
    assert grpo([True, False], [0, 0], norm="mean_norm").tolist() == [0.5, -0.5]
    assert grpo(np.array([2, 0], dtype=np.int64), [0, 0], norm="mean_norm").tolist() == [1.0, -1.0]
    assert grpo([2**70, 0], [0, 0], norm="mean_norm").tolist() == [2.0**69, -(2.0**69)]
