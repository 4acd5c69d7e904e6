"""GiGPO on lists of `StepData`, for callers that hold steps and not columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.advantages._columns import finite_column, in_range, is_finite, rows_of
from penstock.advantages._deviations import LARGEST, saturated, saturated_sum
from penstock.advantages._labels import groups_of
from penstock.advantages._observations import anchor_key
from penstock.advantages._scan import Timeline
from penstock.advantages.anchors import anchored_by_keys
from penstock.advantages.gigpo import step_part
from penstock.advantages.grpo import grpo
from penstock.advantages.returns import returns_along
from penstock.advantages.state_hashing import state_of
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
    final score. `return_to_go` is advantage + `policy_value_estimate` where the policy has a critic, else the discounted return. Finite: what is
    beyond the largest float64 becomes that float. ValueError: as `gigpo`, naming the argument and the place in it; also whatever `state_hashing_function`
    raises.

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
    if not callable(state_hashing_function):
        raise ValueError(f"state_hashing_function is {state_hashing_function!r}, which cannot be called")
    scores_T = finite_column(final_scores_for_rollouts, name="final_scores_for_rollouts")
    batch = _checked(batch_of_step_data_lists)
    if len(scores_T) != len(batch):
        raise ValueError(f"final_scores_for_rollouts has {len(scores_T)} scores for {len(batch)} lists of steps; there must be one each")
    flat = [step for steps in batch for step in steps]
    trajectory_N = np.repeat(np.arange(len(scores_T)), [len(steps) for steps in batch])
    scored = zip(batch, scores_T, strict=True)
    rewards_N = np.array(
        [reward for steps, score in scored for reward in step_rewards([step.base_reward for step in steps], float(score), default_step_reward)],
        dtype=np.float64,
    )
    returns_N = returns_along(rewards_N, Timeline(groups_of(trajectory_N, len(flat))), gamma)
    state_N, anchored_N = anchored_by_keys(_keys(batch, state_hashing_function))
    step_N = step_part(returns_N, groups_of(state_N, len(flat)), anchored_N, norm="mean_std_norm")
    episode_T = grpo(scores_T, np.zeros(len(scores_T), dtype=np.intp))
    advantages_N = saturated_sum(saturated(episode_T[trajectory_N], omega), saturated(step_N, 1.0 - omega))
    filled = iter([_filled(step, float(advantage), float(rest)) for step, advantage, rest in zip(flat, advantages_N, returns_N, strict=True)])
    return [[next(filled) for _ in steps] for steps in batch]


def step_rewards(base_rewards: Sequence[float | None], final_score: float, default_step_reward: float = 0.0) -> list[float]:
    """The reward of each step of one trajectory. One that the environment did not reward gets the default, and at the end also the final score.

    >>> step_rewards([None, 0.25, None], 1.0, default_step_reward=-0.5)
    [-0.5, 0.25, 0.5]
    """
    rewards = [default_step_reward if reward is None else reward for reward in base_rewards]
    if base_rewards and base_rewards[-1] is None:
        rewards[-1] = _bounded(rewards[-1] + final_score)
    return rewards


def _checked(batch_of_step_data_lists: Iterable[Iterable[StepData]]) -> list[list[StepData]]:
    batch = rows_of(batch_of_step_data_lists, name="batch_of_step_data_lists")
    lists: list[list[StepData]] = [rows_of(steps, name=f"batch_of_step_data_lists[{number}]") for number, steps in enumerate(batch)]
    for place, step in _places(lists):
        if not isinstance(step, StepData):
            raise ValueError(f"{place} is {step!r:.80}; it must be a StepData")
        for name in ("base_reward", "policy_value_estimate"):
            if (value := getattr(step, name)) is not None:
                is_finite(value, name=f"{place}.{name}")
    return lists


def _places(batch: Sequence[Sequence[StepData]]) -> Iterator[tuple[str, StepData]]:
    """Each step, and what errors call it."""
    return ((f"batch_of_step_data_lists[{number}][{index}]", step) for number, steps in enumerate(batch) for index, step in enumerate(steps))


def _keys(batch: Sequence[Sequence[StepData]], state_hashing_function: Callable[[Any], Any]) -> list[Hashable]:
    """What makes the state of each step the same as that of others."""
    keys = []
    for place, step in _places(batch):
        state = state_of(state_hashing_function, step.observation_data, place=f"{place}.observation_data")
        try:
            keys.append(anchor_key(state))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"state_hashing_function gave {state!r:.80} for {place}, which cannot be compared: {error}") from None
    return keys


def _filled(step: StepData, advantage: float, rest: float) -> StepData:
    value = step.policy_value_estimate
    return replace(step, advantage=advantage, return_to_go=rest if value is None else _bounded(advantage + value))


def _bounded(value: float) -> float:
    return min(max(value, -LARGEST), LARGEST)
