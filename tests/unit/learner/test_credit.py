"""From fetched groups to samples with advantages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.config import load
from penstock.errors import ConfigError
from penstock.learner.credit import AlgorithmConfig, credit
from penstock.trace import Recorder
from penstock.types import Annotation, CutRequest, Group, Plan, PlannedGroup, Purpose, Rollout, Source, VersionRun


def rollout(group: int, member: int, reward: float) -> Rollout:
    recorder = Recorder()
    recorder.append([1, 2], Source.ENV)
    recorder.append([3, 4, 5], Source.SAMPLED, logprobs=np.full(3, -0.5, np.float32), versions=(VersionRun(policy="policy", version=0, count=3),))
    return Rollout(
        run="run",
        environment="env",
        problem_id="p",
        group_id=f"s/0/{group}",
        member=member,
        retry=0,
        rollout_uid=f"{group}:{member}",
        trace=recorder.trace(),
        reward=reward,
    )


def group(number: int, rewards: list[float]) -> Group:
    members = tuple(rollout(number, member, reward) for member, reward in enumerate(rewards))
    return Group(run="run", id=f"s/0/{number}", environment="env", problem_id="p", purpose=Purpose.TRAIN, rollouts=members)


GROUPS = [group(0, [1.0, 0.0, 0.0, 1.0]), group(1, [0.0, 0.0, 0.0, 1.0])]
PLAN = Plan(
    run="run",
    update=7,
    term=1,
    groups=tuple(PlannedGroup(id=found.id, digest="") for found in GROUPS),
    newest_version=0,
    tokens=40,
    request=CutRequest(groups_per_update=2, seed=3),
)


def given(config: AlgorithmConfig, plan: Plan = PLAN) -> list[float]:
    return [float(sample.advantages[-1]) for sample in credit(GROUPS, plan, config)]


def test_each_rollout_gets_the_advantage_within_its_own_group() -> None:
    mean_only = AlgorithmConfig(options={"norm": "mean_norm"})
    assert given(mean_only) == [0.5, -0.5, -0.5, 0.5, -0.25, -0.25, -0.25, 0.75]
    assert given(AlgorithmConfig(adv_estimator="rloo"))[:4] == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


def test_advantages_stand_on_sampled_tokens_only() -> None:
    (first, *_) = credit(GROUPS, PLAN, AlgorithmConfig(options={"norm": "mean_norm"}))
    assert first.advantages.tolist() == [0.0, 0.0, 0.5, 0.5, 0.5]


def test_the_control_deals_the_same_advantages_out_otherwise_and_a_replay_deals_them_alike() -> None:
    honest = AlgorithmConfig(options={"norm": "mean_norm"})
    control = replace(honest, shuffle_advantages=True)
    assert sorted(given(control)) == sorted(given(honest))
    assert given(control) != given(honest)
    assert given(control) == given(control)
    assert given(control, replace(PLAN, update=8)) != given(control)


def test_an_unknown_estimator_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="grpo"):
        AlgorithmConfig(adv_estimator="gpro")


def test_an_option_that_the_estimator_does_not_have_or_take_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.adv_estimator: estimator 'grpo' has no option 'nrom' \(value 'mean_norm'\); did you mean 'norm'"):
        AlgorithmConfig(options={"nrom": "mean_norm"})
    with pytest.raises(ConfigError, match="norm is 'median', did you mean"):
        AlgorithmConfig(options={"norm": "median"})
    with pytest.raises(ConfigError, match=r"algorithm.options.w: write it as algorithm.gigpo.w"):
        AlgorithmConfig(adv_estimator="gigpo", options={"w": 2.0})
    with pytest.raises(ConfigError, match="pass_at_k: must be 1 or more, got 0"):
        AlgorithmConfig(pass_at_k=0)


def test_shaped_rewards_come_before_the_estimator() -> None:
    # Group 1 has one success of four; in teams of two a failure is with it in one of three.
    shaped = given(AlgorithmConfig(options={"norm": "mean_norm"}, pass_at_k=2))
    assert shaped[4:] == pytest.approx([-1 / 6, -1 / 6, -1 / 6, 1 / 2])


def test_lengths_are_the_sampled_tokens() -> None:
    # All are equally long, so that the length-weighted baseline is the mean.
    assert given(AlgorithmConfig(adv_estimator="opo")) == [0.5, -0.5, -0.5, 0.5, -0.25, -0.25, -0.25, 0.75]


def test_a_greedy_baseline_is_read_from_annotations_and_missed_by_name() -> None:
    config = AlgorithmConfig(adv_estimator="remax")
    notes = tuple(Annotation(run="run", rollout_uid=found.rollout_uid, name="greedy", values={"reward": 0.25}) for found in GROUPS[0].rollouts)
    annotated = replace(GROUPS[0], annotations=notes)
    assert [float(sample.advantages[-1]) for sample in credit([annotated], PLAN, config)] == [0.75, -0.25, -0.25, 0.75]
    with pytest.raises(ConfigError, match=r"algorithm.adv_estimator remax needs the reward of a greedy try, and rollout 0:0 has no annotation 'greedy'"):
        credit(GROUPS, PLAN, config)


def test_the_sections_of_estimators_are_read_from_yaml() -> None:
    words = "adv_estimator: rlvcr\nrlvcr: {enable: true, step_advantage_w: 1.0, thinking_diversity_w: 0.5, mode: mean_norm}"
    assert load(words, ["gigpo.omega=0.25"], AlgorithmConfig).estimator_options["thinking_diversity_w"] == 0.5
    one_word = load("adv_estimator: grpo\ngigpo: {combine: omega}", ["adv_estimator=gigpo", "gigpo.omega=0.25"], AlgorithmConfig)
    assert (one_word.estimator_options["omega"], one_word.estimator_options["combine"]) == (0.25, "omega")
    assert load("options: {ddof: 0}", [], AlgorithmConfig).estimator_options == {"ddof": 0}
    for text, message in (
        ("gigpo: {gama: 0.9}", r"gigpo.gama: unknown key \(value 0.9\); did you mean gigpo.gamma"),
        ("gigpo: {gamma: 2}", "gigpo.gamma: must be 0 or more and at most 1, got 2"),
        ("gigpo: {norm: std}", "gigpo.norm: must be mean_norm or mean_std_norm, got 'std'"),
        ("rlvcr: {cost_max: 0}", "rlvcr.cost_max: must be above 0, got 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(text, [], AlgorithmConfig)


def test_a_users_own_estimator_that_fails_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_failing_credit.py").write_text("def fails(rewards, group):\n    raise KeyError('x')\n\ndef half(rewards, group):\n    return rewards / 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="my_failing_credit:fails fails on two rows: KeyError: 'x'"):
        AlgorithmConfig(adv_estimator="my_failing_credit:fails")
    assert given(AlgorithmConfig(adv_estimator="my_failing_credit:half"))[:2] == [0.5, 0.0]
