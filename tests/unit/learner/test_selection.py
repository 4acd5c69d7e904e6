"""Filters before credit: who carries no loss still counts in the baseline of the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.batching import pack
from penstock.learner.config import LossConfig
from penstock.learner.credit import AlgorithmConfig
from penstock.learner.reports import Reporter
from penstock.learner.selection import Trained, select, trained
from penstock.learner.step import StepResult
from penstock.metrics import MemorySink, Metrics
from penstock.trace import Recorder
from penstock.types import CutRequest, Group, Plan, Purpose, Rollout, RolloutStatus, Source, VersionRun


def rollout(group: int, member: int, reward: float, *, length: int = 3, version: int = 1, status: RolloutStatus = RolloutStatus.OK) -> Rollout:
    recorder = Recorder()
    recorder.append([1, 2], Source.ENV)
    recorder.append(
        [3 + member] * length,
        Source.SAMPLED,
        logprobs=np.full(length, -0.5, np.float32),
        versions=(VersionRun(policy="policy", version=version, count=length),),
    )
    return Rollout(
        run="run",
        environment="env",
        problem_id="p",
        group_id=f"s/0/{group}",
        member=member,
        retry=0,
        rollout_uid=f"{group}:{member}",
        trace=recorder.trace(),
        status=status,
        reward=reward,
    )


def group(number: int, *rollouts: Rollout) -> Group:
    return Group(run="run", id=f"s/0/{number}", environment="env", problem_id="p", purpose=Purpose.TRAIN, rollouts=rollouts)


GROUPS = (
    group(0, rollout(0, 0, 1.0), rollout(0, 1, 0.0, length=9), rollout(0, 2, 0.0, status=RolloutStatus.TRUNCATED)),
    group(1, rollout(1, 0, 1.0), rollout(1, 1, 1.0)),
    group(2, rollout(2, 0, 1.0, version=0), rollout(2, 1, 0.0)),
)
PLAN = Plan(run="run", update=0, term=1, groups=(), newest_version=1, tokens=0, request=CutRequest(groups_per_update=3))


def given(**filters: dict[str, float] | None) -> dict[str, float]:
    """Advantage of each rollout that trains."""
    algorithm = AlgorithmConfig(adv_estimator="grpo", options={"norm": "mean_norm"}, filters=filters)
    left = trained(select(GROUPS, algorithm.filter_options, newest_version=PLAN.newest_version), PLAN, algorithm)
    return {sample.rollout_uid: float(sample.advantages[-1]) for sample in left.samples}


def test_without_filters_everybody_trains() -> None:
    assert list(given()) == ["0:0", "0:1", "0:2", "1:0", "1:1", "2:0", "2:1"]


def test_members_are_left_out_and_their_rewards_still_count() -> None:
    found = given(over_long={"max_tokens": 8}, truncated=None)
    assert list(found) == ["0:0", "1:0", "1:1", "2:0", "2:1"]
    # Against the mean of all three, not against itself alone.
    assert abs(found["0:0"] - 2 / 3) < 1e-6


def test_groups_are_left_out_whole() -> None:
    assert list(given(zero_variance=None)) == ["0:0", "0:1", "0:2", "2:0", "2:1"]
    assert list(given(staleness={"max_lag": 0})) == ["0:0", "0:1", "0:2", "1:0", "1:1"]
    assert list(given(reward_range={"low": 0.4, "high": 0.9})) == ["2:0", "2:1"]


def test_when_nobody_is_left_the_batch_is_empty_and_has_no_loss() -> None:
    assert given(reward_range={"low": 2.0}) == {}
    assert not pack([], tokens_per_row=None).loss_mask.any()


def test_a_replay_measures_age_at_the_plan_and_not_now() -> None:
    assert len(select(GROUPS, {"staleness": {"max_lag": 0}}, newest_version=0).groups) == 3
    assert len(select(GROUPS, {"staleness": {"max_lag": 0}}, newest_version=1).groups) == 2


def test_what_was_left_out_is_told_by_filter_and_length() -> None:
    sink = MemorySink()
    reporter = Reporter(Metrics(sink))
    reporter.batch(GROUPS, select(GROUPS, {"zero_variance": {}, "over_long": {"max_tokens": 8}}, newest_version=1), Trained(samples=[]))
    reporter.step(PLAN, StepResult(kind="skipped", reason="no_loss"), 1.0)
    told = dict(sink.emissions[0].values)
    assert told["filtered/env/zero_variance/rollouts"] == 2
    assert told["filtered/env/zero_variance/length"] == 3
    assert told["filtered/env/over_long/rollouts"] == 1
    assert told["filtered/env/over_long/length"] == 9
    assert told["batches/env/length"] == (6 * 3 + 9) / 7
    assert told["batches/env/longest"] == (9 + 3 + 3) / 3


def test_filters_are_part_of_what_a_plan_records() -> None:
    plain = AlgorithmConfig(loss=LossConfig())
    assert str(plain) != str(replace(plain, filters={"zero_variance": None}))
