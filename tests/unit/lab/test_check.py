"""Wrong estimators and losses are caught and named, with the smallest example; right ones pass."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import numpy as np
import pytest
import torch

from penstock.advantages import ESTIMATORS
from penstock.cli import main
from penstock.errors import ConfigError
from penstock.lab.check import CheckReport, check_algorithm, describe_check, kind_of
from penstock.learner.config import LossConfig
from penstock.learner.losses import LossInputs, TokenLosses

torch.set_num_threads(1)


def batch_std(rewards: Any, group: Any) -> Any:
    """Spread over the whole batch in place of the group's."""
    rewards, group = np.asarray(rewards), np.asarray(group)
    means = np.array([rewards[group == label].mean() for label in group])
    return (rewards - means) / (rewards.std() + 1e-6)


def lonely(rewards: Any, group: Any) -> Any:
    """Sample spread, which one try alone does not have."""
    rewards, group = np.asarray(rewards), np.asarray(group)
    return np.array([(reward - rewards[group == label].mean()) / rewards[group == label].std(ddof=1) for reward, label in zip(rewards, group, strict=True)])


def neighbours(rewards: Any, group: Any) -> Any:
    """Against the row before, whoever that is."""
    return np.asarray(rewards) - np.roll(rewards, 1)


def greedy_hand(rewards: Any, group: Any) -> Any:
    """Centres its input in place."""
    rewards -= 1.0
    return np.zeros(len(rewards))


def forgiving(rewards: Any, group: Any) -> Any:
    """Takes NaN for nothing."""
    return np.nan_to_num(rewards, posinf=0.0, neginf=0.0) * 0.0


def micro_batch_mean(inputs: LossInputs, config: LossConfig) -> TokenLosses:
    return TokenLosses(losses_L=-inputs.advantages_L * inputs.logprobs_L / len(inputs.logprobs_L))


def off_by_one(inputs: LossInputs, config: LossConfig) -> TokenLosses:
    """Leaves out the first token of each sample."""
    first_L = torch.ones(len(inputs.sample_ids_L), dtype=torch.bool)
    first_L[1:] = inputs.sample_ids_L[1:] != inputs.sample_ids_L[:-1]
    return TokenLosses(losses_L=-inputs.advantages_L * inputs.logprobs_L * ~first_L)


def detached(inputs: LossInputs, config: LossConfig) -> TokenLosses:
    """A ratio whose gradient was lost on the way: half of it is detached."""
    ratios_L = (inputs.logprobs_L - inputs.behaviour_logprobs_L).clamp(-20, 20).exp()
    return TokenLosses(losses_L=-inputs.advantages_L * (ratios_L + ratios_L.detach()) / 2)


def failed(report: CheckReport) -> list[str]:
    return [finding.check for finding in report.failed]


@pytest.mark.parametrize("name", [*ESTIMATORS, "ppo_clip", "reinforce_tis"])
def test_built_in_ones_pass(name: str) -> None:
    assert failed(check_algorithm(name)) == []


@pytest.mark.parametrize(
    ("name", "check"),
    [("batch_std", "split"), ("lonely", "finite"), ("neighbours", "permutation"), ("greedy_hand", "unchanged_inputs"), ("forgiving", "bad_values")],
)
def test_a_wrong_estimator_is_caught_and_named(name: str, check: str) -> None:
    assert check in failed(check_algorithm(f"{__name__}:{name}"))


@pytest.mark.parametrize(("name", "check"), [("micro_batch_mean", "micro_batches"), ("off_by_one", "on_policy_gradient"), ("detached", "differences")])
def test_a_wrong_loss_is_caught_and_named(name: str, check: str) -> None:
    assert check in failed(check_algorithm(f"{__name__}:{name}"))


def test_the_example_is_the_smallest() -> None:
    report = check_algorithm(f"{__name__}:off_by_one")
    example = next(finding.example for finding in report.failed if finding.check == "on_policy_gradient")
    assert len(example) == 2  # a heading and one token
    assert "FAILED  on_policy_gradient" in describe_check(report)


def test_what_a_name_stands_for_is_seen() -> None:
    assert kind_of("gspo") == "loss"
    assert kind_of(f"{__name__}:detached") == "loss"
    assert kind_of(f"{__name__}:lonely") == "estimator"
    with pytest.raises(ConfigError, match="did you mean 'grpo'"):
        kind_of("grp0")
    with pytest.raises(ConfigError, match="has no option 'nrm'"):
        check_algorithm("grpo", ["nrm=mean_norm"])


def test_the_verb_ends_with_1_when_something_fails() -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main(["check", "algorithm", f"{__name__}:batch_std", "--json"])
    assert ended.value.code == 1
    assert "split" in [finding["check"] for finding in json.loads(out.getvalue())["findings"] if finding["status"] == "failed"]
