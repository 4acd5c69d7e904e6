"""GiGPO over `StepData`, as its callers hold it."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from penstock.advantages import gigpo, hash_structured, system_apply_gigpo_to_batch_steps
from penstock.types import StepData


def step(index: int, observation: object, base_reward: float | None = None, value: float | None = None) -> StepData:
    return StepData(
        system_step_index=index,
        observation_data=observation,
        action_taken={"type": "text", "content": "go"},
        raw_policy_output="go",
        resulting_messages_history=[],
        base_reward=base_reward,
        policy_value_estimate=value,
    )


BATCH = [[step(0, "hall"), step(1, "shed")], [step(0, "hall"), step(1, "hall"), step(2, "cellar")]]
SCORES = [1.0, 0.0]
LARGEST = float(np.finfo(np.float64).max)


def test_the_signature_is_the_agreed_one() -> None:
    names = list(inspect.signature(system_apply_gigpo_to_batch_steps).parameters)
    assert names == ["batch_of_step_data_lists", "final_scores_for_rollouts", "omega", "gamma", "state_hashing_function", "default_step_reward"]


def test_a_group_worked_out_by_hand() -> None:
    found = system_apply_gigpo_to_batch_steps(BATCH, SCORES, 0.5, 0.5, hash_structured())
    episode = 0.5 / (0.5**0.5 + 1e-6)
    # Returns 1/2, 1 and 0, 0, 0. The hall was left with 1/2, 0, 0: mean 1/6, sample variance 1/12.
    hall = (1 / 12) ** 0.5 + 1e-6
    want = [episode / 2 + (1 / 3) / hall / 2, episode / 2, -episode / 2 - (1 / 6) / hall / 2, -episode / 2 - (1 / 6) / hall / 2, -episode / 2]
    np.testing.assert_allclose([one.advantage for steps in found for one in steps], want, rtol=1e-12)
    assert [one.return_to_go for steps in found for one in steps] == [0.5, 1.0, 0.0, 0.0, 0.0]
    assert [len(steps) for steps in found] == [2, 3]


def test_it_is_gigpo_with_omega_over_one_group() -> None:
    found = system_apply_gigpo_to_batch_steps(BATCH, SCORES, 0.3, 0.9, lambda observation: observation)
    columns = gigpo(
        [0, 1, 0, 0, 0], [0, 0, 1, 1, 1], [0] * 5, ["hall", "shed", "hall", "hall", "cellar"], gamma=0.9, norm="mean_std_norm", combine="omega", omega=0.3
    )
    np.testing.assert_allclose([one.advantage for steps in found for one in steps], columns.total, rtol=1e-14)


def test_given_steps_are_left_alone() -> None:
    system_apply_gigpo_to_batch_steps(BATCH, SCORES, 0.5, 0.5, hash_structured())
    assert all(one.advantage is None and one.return_to_go is None for steps in BATCH for one in steps)


def test_missing_rewards_are_the_default_and_the_score_comes_at_the_end_only_where_nothing_else_does() -> None:
    batch = [[step(0, "a"), step(1, "b")], [step(0, "c", 5.0), step(1, "d", 7.0)], [step(0, "e", 5.0), step(1, "f")]]
    found = system_apply_gigpo_to_batch_steps(batch, [2.0, 2.0, 2.0], 0.5, 1.0, hash_structured(), default_step_reward=-0.5)
    assert [[one.return_to_go for one in steps] for steps in found] == [[1.0, 1.5], [12.0, 7.0], [6.5, 1.5]]


def test_with_a_critic_the_return_to_go_is_advantage_plus_value() -> None:
    batch = [[step(0, "hall", value=0.25)], [step(0, "hall")]]
    ((first,), (second,)) = system_apply_gigpo_to_batch_steps(batch, SCORES, 0.5, 0.9, hash_structured())
    assert first.advantage is not None
    assert first.return_to_go == first.advantage + 0.25
    assert second.return_to_go == 0.0


def test_advantage_plus_value_beyond_floats_is_the_largest_float() -> None:
    # Two trajectories: advantages of about +-0.7, and values at the ends of what a float holds.
    batch = [[step(0, "hall", value=LARGEST)], [step(0, "hall", value=-LARGEST)]]
    found = system_apply_gigpo_to_batch_steps(batch, SCORES, 0.5, 0.9, hash_structured())
    assert [one.return_to_go for steps in found for one in steps] == [LARGEST, -LARGEST]


@pytest.mark.parametrize("value", [np.nan, np.inf, "high"])
def test_a_value_estimate_that_is_no_number_is_refused_by_place(value: float) -> None:
    with pytest.raises(ValueError, match=r"batch_of_step_data_lists\[1\]\[2\].policy_value_estimate is .*; it must be a finite number"):
        system_apply_gigpo_to_batch_steps([BATCH[0], [*BATCH[1][:2], step(2, "cellar", value=value)]], SCORES, 0.5, 0.9, hash_structured())


def test_what_a_state_hashing_function_raises_names_it_and_the_step() -> None:
    def by_room(observation: object) -> object:
        return {"hall": 1}[observation]

    place = r"batch_of_step_data_lists\[0\]\[1\].observation_data"
    with pytest.raises(ValueError, match=rf"state_hashing_function .*by_room fails on {place}: KeyError: 'shed'") as caught:
        system_apply_gigpo_to_batch_steps(BATCH, SCORES, 0.5, 0.9, by_room)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (None, "batch_of_step_data_lists is None; it must be a column"),
        ([BATCH[0], 3], r"batch_of_step_data_lists\[1\] is 3; it must be a column"),
        ([BATCH[0], [{"base_reward": 1.0}]], r"batch_of_step_data_lists\[1\]\[0\] is \{'base_reward': 1.0\}; it must be a StepData"),
    ],
)
def test_what_is_no_list_of_steps_is_named(batch: list[list[StepData]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        system_apply_gigpo_to_batch_steps(batch, SCORES, 0.5, 0.9, hash_structured())


def test_a_trajectory_without_steps_counts_as_one_that_was_scored() -> None:
    found = system_apply_gigpo_to_batch_steps([[step(0, None)], [], [step(0, None)]], [1.0, 0.0, 0.0], 1.0, 0.9, hash_structured())
    spread = (1 / 3) ** 0.5 + 1e-6
    np.testing.assert_allclose([one.advantage for steps in found for one in steps], [2 / 3 / spread, -1 / 3 / spread], rtol=1e-14)
    assert system_apply_gigpo_to_batch_steps([], [], 0.5, 0.9, hash_structured()) == []


@pytest.mark.parametrize(
    ("scores", "first", "options", "message"),
    [
        ([1.0], 0.0, {}, "final_scores_for_rollouts has 1 scores for 2 lists of steps"),
        ([1.0, np.nan], 0.0, {}, r"final_scores_for_rollouts\[1\] is nan"),
        (SCORES, np.inf, {}, r"batch_of_step_data_lists\[0\]\[0\].base_reward is inf"),
        (SCORES, 0.0, {"omega": 1.5}, "omega is 1.5"),
        (SCORES, 0.0, {"gamma": -1.0}, "gamma is -1.0"),
        (SCORES, 0.0, {"default_step_reward": np.nan}, "default_step_reward is nan"),
        (
            SCORES,
            0.0,
            {"state_hashing_function": lambda observation: {observation}},
            r"gave \{'hall'\} for batch_of_step_data_lists\[0\]\[0\], which cannot be compared",
        ),
        (SCORES, 0.0, {"state_hashing_function": "structured"}, "state_hashing_function is 'structured', which cannot be called"),
    ],
)
def test_bad_input_is_refused_by_place_and_value(scores: list[float], first: float, options: dict[str, object], message: str) -> None:
    batch = [[replace(BATCH[0][0], base_reward=first), BATCH[0][1]], BATCH[1]]
    arguments = {"omega": 0.5, "gamma": 0.9, "state_hashing_function": hash_structured()} | options
    with pytest.raises(ValueError, match=message):
        system_apply_gigpo_to_batch_steps(batch, scores, **arguments)  # type: ignore[arg-type]
