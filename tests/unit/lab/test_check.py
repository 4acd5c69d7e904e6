"""Wrong estimators and losses are caught and named, with the smallest example; right ones pass."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.advantages import ESTIMATORS
from penstock.cli import main
from penstock.errors import ConfigError
from penstock.lab.check import CheckReport, check_algorithm, describe_check, kind_of
from penstock.learner.config import LOSS_NAMES, LossConfig
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


def sure(rewards: Any, group: Any, confidence: Any, thinking_group: Any) -> Any:
    """Takes it that every level was scored."""
    return np.asarray(rewards) * np.asarray(confidence)


def base_last(rewards: Any, group: Any, confidence: Any, *, base: Any = None) -> Any:
    """Gives the credit that was ready to the last row only."""
    return np.zeros(len(rewards)) if base is None else np.where(np.arange(len(rewards)) == len(rewards) - 1, base, 0.0)


def needy(step_rewards: Any, group: Any, *, trajectory: Any = None) -> Any:
    """Counts on labels that it says it can do without."""
    return np.zeros(len(trajectory))


def cut_off(step_rewards: Any, trajectory: Any, *, bootstrap: Any = None) -> Any:
    """Does not look at what comes after the end."""
    return np.asarray(step_rewards) * 0.0 if bootstrap is None else np.nan_to_num(bootstrap)


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


@pytest.mark.parametrize("name", [*ESTIMATORS, *LOSS_NAMES])
def test_built_in_ones_pass(name: str) -> None:
    assert failed(check_algorithm(name)) == []


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo_clip", ["dual_clip=3.0", "kl_coef=0.1", "entropy_coef=0.1", "denominator=sequence_mean"]),
        ("icepop", ["weight_level=sequence", "denominator=fixed", "fixed_denominator=7.0"]),
        ("rlvcr", ["thinking_diversity_w=0.5", "thinking_cost_alpha=0.5", "mode=mean_std_norm"]),
    ],
)
def test_built_in_ones_pass_under_other_settings(name: str, settings: list[str]) -> None:
    assert failed(check_algorithm(name, settings)) == []


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("sure", "finite"),
        ("base_last", "with_base"),
        ("needy", "without_trajectory"),
        ("cut_off", "with_bootstrap"),
        ("batch_std", "split"),
        ("lonely", "finite"),
        ("neighbours", "permutation"),
        ("greedy_hand", "unchanged_inputs"),
        ("forgiving", "bad_values"),
    ],
)
def test_a_wrong_estimator_is_caught_and_named(name: str, check: str) -> None:
    assert check in failed(check_algorithm(f"{__name__}:{name}"))


@pytest.mark.parametrize(
    ("name", "check"), [("micro_batch_mean", "micro_batches"), ("micro_batch_mean", "ranks"), ("off_by_one", "on_policy_gradient"), ("detached", "differences")]
)
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


@pytest.mark.parametrize(("name", "settings"), [("late_bloomer", ["bonus=0.25"]), ("plain", ["options.scale=1.0"])])
def test_what_the_docs_show_as_ones_own_passes(name: str, settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
    code = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if f"def {name}(" in code)
    (tmp_path / f"of_the_docs_{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert failed(check_algorithm(f"of_the_docs_{name}:{name}", settings)) == []
