"""The facts of fetched groups as columns, one row per episode, step or thinking level, as an estimator asks for them. Called by `credit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.advantages import Declaration, RowKind, pass_at_k_rewards
from penstock.advantages.config import GigpoConfig
from penstock.advantages.state_hashing import state_of
from penstock.advantages.step_data import step_rewards
from penstock.errors import ConfigError, InvalidError, InvariantError
from penstock.learner.thinking import Level, is_complete, level_said, looked_at, with_alternatives
from penstock.trace import facts, step_marks, steps
from penstock.types import Annotation, Float64Array, Group, Mark, Rollout, Source

WHOLE = None
"""In place of a message: the row's advantage falls on all tokens of the rollout."""
GREEDY = "greedy"
"""Annotation of a rollout whose value `reward` is that of a greedy try at the same problem."""
POLICY = "policy"
"""The policy that is trained."""

Columns = dict[str, list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CreditRows:
    """Columns for an estimator, and where the advantage of each row falls."""

    rollouts: Sequence[Rollout]
    """In the order of the plan. With alternatives as further branches where the estimator trains them."""
    columns: Mapping[str, list[Any]]
    rollout_N: Sequence[int]
    """Which of the rollouts a row is about."""
    mark_N: Sequence[int | None]
    """The message of that rollout whose tokens get the row's advantage; None: all of them."""
    trains_N: Sequence[bool]
    """False for rows that are only compared with: levels that were not sampled."""
    thinking: Sequence[tuple[int, str | None]] = ()
    """For each step whose thinking levels were asked for: its rollout, and why they were not weighed, None if they were."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Step:
    """A reply of the trained policy."""

    index: int
    """Among all steps of the rollout; what annotations are keyed by."""
    number: int | None
    """Of the message in the trace; None for a rollout that does not say where its messages are."""
    mark: Mark | None


def credit_rows(groups: Sequence[Group], estimator: Declaration, gigpo: GigpoConfig, *, pass_at_k: int | None = None, signal: str = "confidence") -> CreditRows:
    """Rows as `estimator` needs them. ConfigError if the groups lack what it needs."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    group_R = [number for number, group in enumerate(groups) for _ in group.rollouts]
    rewards_R = np.array([_reward(rollout) for rollout in rollouts], dtype=np.float64)
    if pass_at_k is not None:
        rewards_R = pass_at_k_rewards(rewards_R, group_R, k=pass_at_k)
    if estimator.row is RowKind.EPISODE:
        return _episode_rows(groups, rollouts, group_R, rewards_R, estimator)
    if estimator.row is RowKind.STEP:
        return _step_rows(rollouts, group_R, rewards_R, estimator, gigpo)
    return _level_rows(groups, rollouts, group_R, rewards_R, estimator, signal)


def _episode_rows(groups: Sequence[Group], rollouts: Sequence[Rollout], group_R: list[int], rewards_R: Float64Array, estimator: Declaration) -> CreditRows:
    columns: Columns = {"rewards": rewards_R.tolist(), "group": group_R}
    asked = {*estimator.columns, *estimator.optional_columns}
    if "lengths" in asked:
        columns["lengths"] = [float(facts(rollout).sampled_tokens) for rollout in rollouts]
    if "greedy_rewards" in asked:
        columns["greedy_rewards"] = _greedy_rewards(groups, rollouts, estimator.name)
    everyone = range(len(rollouts))
    return CreditRows(rollouts=rollouts, columns=columns, rollout_N=everyone, mark_N=[WHOLE for _ in everyone], trains_N=[True for _ in everyone])


def _step_rows(rollouts: Sequence[Rollout], group_R: list[int], rewards_R: Float64Array, estimator: Declaration, gigpo: GigpoConfig) -> CreditRows:
    asked = {*estimator.columns, *estimator.optional_columns}
    columns: Columns = {name: [] for name in ("rewards", "group", "trajectory", "step_rewards", "scores", "anchor")}
    values: list[float] = []
    rollout_N: list[int] = []
    mark_N: list[int | None] = []
    state_hash = gigpo.state_hash()
    for number, rollout in enumerate(rollouts):
        own = _own_steps(rollout)
        reward = float(rewards_R[number])
        columns["rewards"] += [reward] * len(own)
        columns["scores"] += [reward] * len(own)
        columns["group"] += [group_R[number]] * len(own)
        columns["trajectory"] += [number] * len(own)
        columns["step_rewards"] += step_rewards([None if step.mark is None else step.mark.reward for step in own], reward, gigpo.default_step_reward)
        if "anchor" in asked:
            columns["anchor"] += _anchors(rollout, own, state_hash)
        if "values" in asked:
            values += [_value(rollout, step, estimator.name) for step in own]
        rollout_N += [number] * len(own)
        mark_N += [step.number for step in own]
    if "values" in asked:
        columns["values"] = values
    return CreditRows(rollouts=rollouts, columns=columns, rollout_N=rollout_N, mark_N=mark_N, trains_N=[True] * len(rollout_N))


def _level_rows(
    groups: Sequence[Group], rollouts: Sequence[Rollout], group_R: list[int], rewards_R: Float64Array, estimator: Declaration, signal: str
) -> CreditRows:
    columns: Columns = {name: [] for name in ("rewards", "group", "trajectory", "confidence", "cost", "thinking_group", "chosen", "level")}
    shown: list[Rollout] = []
    rollout_N: list[int] = []
    mark_N: list[int | None] = []
    trains_N: list[bool] = []
    thinking: list[tuple[int, str | None]] = []
    annotations = (annotations for group in groups for annotations in _by_rollout(group))
    num_steps = 0
    for number, (rollout, own) in enumerate(zip(rollouts, annotations, strict=True)):
        looked = looked_at(rollout, own, estimator.name, signal)
        expanded = looked.levels
        alternatives: dict[tuple[int, int], int] = {}
        if estimator.facts.trains_injected:
            # Only where all four are known: an alternative that was not weighed would carry the whole credit of the episode.
            rollout, alternatives = with_alternatives(rollout, {index: levels for index, levels in expanded.items() if is_complete(levels)})
        shown.append(rollout)
        for step in _own_steps(rollouts[number]):
            thinking.append((number, looked.lacking(step.index)))
            for row, level in enumerate(expanded.get(step.index, (Level(level=_level_said(step)),))):
                mark = step.number if level.chosen else alternatives.get((step.index, row))
                columns["rewards"].append(float(rewards_R[number]))
                columns["group"].append(group_R[number])
                columns["trajectory"].append(number)
                columns["confidence"].append(level.confidence)
                columns["cost"].append(level.cost)
                columns["thinking_group"].append(num_steps if step.index in expanded else -1)
                columns["chosen"].append(level.chosen)
                columns["level"].append(level.level)
                rollout_N.append(number)
                mark_N.append(mark)
                trains_N.append(level.chosen or mark is not None)
            num_steps += 1
    return CreditRows(rollouts=shown, columns=columns, rollout_N=rollout_N, mark_N=mark_N, trains_N=trains_N, thinking=thinking)


def _level_said(step: _Step) -> int:
    return 0 if step.mark is None else level_said(step.mark.message.content)


def _own_steps(rollout: Rollout) -> list[_Step]:
    """The replies of the trained policy, in time order. A rollout without any message is one step as a whole."""
    marks = rollout.trace.marks
    if not marks:
        return [_Step(index=0, number=WHOLE, mark=None)]
    found = [_Step(index=index, number=number, mark=marks[number]) for index, number in enumerate(step_marks(rollout.trace))]
    return [step for step in found if step.mark is not None and _is_ours(rollout, step.mark)]


def _is_ours(rollout: Rollout, mark: Mark) -> bool:
    """Whether the trained policy sampled some of a message. What an example in a prompt or another policy said is not a step."""
    own = rollout.trace.segments[mark.start : mark.stop]
    return any(run.policy == POLICY for segment in own if segment.source is Source.SAMPLED for run in segment.versions)


def _anchors(rollout: Rollout, own: Sequence[_Step], state_hash: Callable[[Any], Any] | None) -> list[Any]:
    if state_hash is None:
        return [None if step.mark is None or step.mark.step is None else step.mark.step.observation for step in own]
    seen = [step.observation_data for step in steps(rollout)]
    try:
        return [
            None if step.mark is None else state_of(state_hash, seen[step.index], place=f"step {step.index} of rollout {rollout.rollout_uid}") for step in own
        ]
    except ValueError as error:
        raise ConfigError(f"algorithm.gigpo: {error}") from error


def _value(rollout: Rollout, step: _Step, name: str) -> float:
    if step.mark is None or step.mark.step is None or step.mark.step.value_estimate is None:
        raise ConfigError(
            f"algorithm.adv_estimator {name} needs a critic's value of every step, and step {step.index} of rollout {rollout.rollout_uid} has none"
        )
    return step.mark.step.value_estimate


def _by_rollout(group: Group) -> Iterator[list[Annotation]]:
    """The annotations of each member. InvalidError for two of one name about the same step: either could be the wrong one."""
    by_key: dict[tuple[str, str, int | None], Annotation] = {}
    for found in group.annotations:
        if (found.rollout_uid, found.name, found.step) in by_key:
            about = "" if found.step is None else f"step {found.step} of "
            raise InvalidError(f"there are two annotations {found.name!r} of {about}rollout {found.rollout_uid}")
        by_key[found.rollout_uid, found.name, found.step] = found
    for rollout in group.rollouts:
        yield [found for found in group.annotations if found.rollout_uid == rollout.rollout_uid]


def _greedy_rewards(groups: Sequence[Group], rollouts: Sequence[Rollout], name: str) -> list[float]:
    found = []
    for rollout, own in zip(rollouts, (own for group in groups for own in _by_rollout(group)), strict=True):
        reward = next((annotation.values.get("reward") for annotation in own if annotation.name == GREEDY and annotation.failed is None), None)
        if isinstance(reward, bool) or not isinstance(reward, (int, float)):
            raise ConfigError(
                f"algorithm.adv_estimator {name} needs the reward of a greedy try, and rollout {rollout.rollout_uid} has no annotation {GREEDY!r} with one"
            )
        found.append(float(reward))
    return found


def _reward(rollout: Rollout) -> float:
    if rollout.reward is None:
        raise InvariantError(f"rollout {rollout.rollout_uid} was planned but has no reward")
    return rollout.reward
