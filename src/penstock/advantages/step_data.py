"""GiGPO on lists of `StepData`, for callers that hold steps and not columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.advantages._columns import finite_column, in_range, is_finite
from penstock.advantages._deviations import LARGEST, saturated, saturated_sum
from penstock.advantages._labels import groups_of
from penstock.advantages._scan import Timeline
from penstock.advantages.anchors import anchored
from penstock.advantages.gigpo import step_part
from penstock.advantages.grpo import grpo
from penstock.advantages.returns import returns_along
from penstock.types import StepData


def system_apply_gigpo_to_batch_steps(
    batch_of_step_data_lists: list[list[StepData]],
    final_scores_for_rollouts: list[float],
    omega: float,
    gamma: float,
    state_hashing_function: Callable[[Any], Any],
    default_step_reward: float = 0.0,
) -> list[list[StepData]]:
    """The steps of one group with `advantage` and `return_to_go` filled in; the given ones stay as they are.

        advantage = omega * A_E + (1 - omega) * A_S      as `gigpo(..., norm="mean_std_norm", combine="omega")`

    One call is one group: entry i of the batch is a trajectory whose score is entry i of `final_scores_for_rollouts`. A trajectory without steps counts in
    the statistics of A_E. Anchors are `state_hashing_function(step.observation_data)`: any JSON-like value, None for a step that is not compared; the
    functions of `penstock.advantages.state_hashing` fit. A `base_reward` of None is `default_step_reward`, and at the last step of a trajectory also the
    final score. `return_to_go` is advantage + `policy_value_estimate` where the policy has a critic, else the discounted return. ValueError: as `gigpo`,
    naming the argument and the place in it.

    >>> from penstock.advantages.state_hashing import hash_structured
    >>> hall = dict(observation_data="hall", action_taken={}, raw_policy_output=None, resulting_messages_history=[])
    >>> batch = [[StepData(system_step_index=0, **hall)], [StepData(system_step_index=0, **hall)]]
    >>> found = system_apply_gigpo_to_batch_steps(batch, [1.0, 0.0], 0.5, 0.95, hash_structured())
    >>> [(round(step.advantage, 4), step.return_to_go) for steps in found for step in steps]
    [(0.7071, 1.0), (-0.7071, 0.0)]
    """
    in_range(omega, 0.0, 1.0, name="omega")
    in_range(gamma, 0.0, 1.0, name="gamma")
    is_finite(default_step_reward, name="default_step_reward")
    scores_T = finite_column(final_scores_for_rollouts, name="final_scores_for_rollouts")
    if len(scores_T) != len(batch_of_step_data_lists):
        raise ValueError(f"final_scores_for_rollouts has {len(scores_T)} scores for {len(batch_of_step_data_lists)} lists of steps; there must be one each")
    flat = [step for steps in batch_of_step_data_lists for step in steps]
    trajectory_N = np.repeat(np.arange(len(scores_T)), [len(steps) for steps in batch_of_step_data_lists])
    _check_base_rewards(batch_of_step_data_lists)
    scored = zip(batch_of_step_data_lists, scores_T, strict=True)
    rewards_N = np.array(
        [reward for steps, score in scored for reward in step_rewards([step.base_reward for step in steps], float(score), default_step_reward)],
        dtype=np.float64,
    )
    returns_N = returns_along(rewards_N, Timeline(groups_of(trajectory_N, len(flat))), gamma)
    anchors = [state_hashing_function(step.observation_data) for step in flat]
    states, anchored_N = anchored(anchors, groups_of(np.zeros(len(flat), dtype=np.intp), len(flat)))
    step_N = step_part(returns_N, states, anchored_N, norm="mean_std_norm")
    episode_T = grpo(scores_T, np.zeros(len(scores_T), dtype=np.intp))
    advantages_N = saturated_sum(saturated(episode_T[trajectory_N], omega), saturated(step_N, 1.0 - omega))
    filled = iter([_filled(step, float(advantage), float(rest)) for step, advantage, rest in zip(flat, advantages_N, returns_N, strict=True)])
    return [[next(filled) for _ in steps] for steps in batch_of_step_data_lists]


def step_rewards(base_rewards: Sequence[float | None], final_score: float, default_step_reward: float = 0.0) -> list[float]:
    """The reward of each step of one trajectory. One that the environment did not reward gets the default, and at the end also the final score.

    >>> step_rewards([None, 0.25, None], 1.0, default_step_reward=-0.5)
    [-0.5, 0.25, 0.5]
    """
    rewards = [default_step_reward if reward is None else reward for reward in base_rewards]
    if base_rewards and base_rewards[-1] is None:
        rewards[-1] = min(max(rewards[-1] + final_score, -LARGEST), LARGEST)
    return rewards


def _check_base_rewards(batch: Sequence[Sequence[StepData]]) -> None:
    for number, steps in enumerate(batch):
        for index, step in enumerate(steps):
            if step.base_reward is not None:
                is_finite(step.base_reward, name=f"batch_of_step_data_lists[{number}][{index}].base_reward")


def _filled(step: StepData, advantage: float, rest: float) -> StepData:
    value = step.policy_value_estimate
    return replace(step, advantage=advantage, return_to_go=rest if value is None else advantage + value)
