"""Each check of an algorithm can fail: for every one there is a wrong estimator or loss that it finds."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from penstock.advantages import declares, dr_grpo, grpo, maxrl
from penstock.lab.check import CheckReport, check_algorithm
from penstock.learner.config import LossConfig
from penstock.learner.losses import LossInputs, TokenLosses

torch.set_num_threads(1)


def no_number(rewards: Any, group: Any) -> Any:
    return np.asarray(rewards) / np.zeros(len(group))


@declares(ignores_shift=True)
def generous(rewards: Any, group: Any) -> Any:
    """Shifts do not count, and everybody gets something."""
    return dr_grpo(rewards, group) + 0.5


@declares(ignores_shift=True)
def lonely_prize(rewards: Any, group: Any) -> Any:
    """Constant batches are left alone, unless somebody has no group to be compared with."""
    sizes = np.array([list(group).count(label) for label in group])
    return dr_grpo(rewards, group) + 0.25 * (sizes == 1)


def over_batch(rewards: Any, group: Any) -> Any:
    return dr_grpo(rewards, group) / (np.ptp(rewards) + 1.0 if len(rewards) else 1.0)


def dice(rewards: Any, group: Any) -> Any:
    return dr_grpo(rewards, group) + np.random.default_rng().random(len(rewards))


def in_turn(rewards: Any, group: Any) -> Any:
    return dr_grpo(rewards, group) + np.arange(len(rewards))


def first_label(rewards: Any, group: Any) -> Any:
    return dr_grpo(rewards, group) * [2.0 if label == 0 else 1.0 for label in group]


@declares(scale="grows")
def not_growing(rewards: Any, group: Any) -> Any:
    return grpo(rewards, group)


@declares(scale="stays")
def not_staying(rewards: Any, group: Any) -> Any:
    return dr_grpo(rewards, group)


@declares(ignores_shift=True)
def shifting(rewards: Any, group: Any) -> Any:
    return maxrl(np.abs(rewards), group)


def in_place(rewards: Any, group: Any) -> Any:
    found = dr_grpo(rewards, group)
    rewards[:] = 0.0
    return found


def first_row(rewards: Any, group: Any) -> Any:
    return dr_grpo(rewards, group) + 0.0 * np.asarray(rewards)[0]


def forgiving(rewards: Any, group: Any) -> Any:
    return dr_grpo(np.nan_to_num(rewards, posinf=0.0, neginf=0.0), group)


def careless(rewards: Any, group: Any) -> Any:
    return np.asarray(rewards) * 1.0


@declares(least_reward=0.0)
def lenient(rewards: Any, group: Any) -> Any:
    return dr_grpo(rewards, group)


WRONG = {
    "finite": "no_number",
    "single_group": "lonely_prize",
    "constant_group": "generous",
    "partial_groups": "over_batch",
    "repeatable": "dice",
    "permutation": "in_turn",
    "labels": "first_label",
    "split": "over_batch",
    "shift": "shifting",
    "unchanged_inputs": "in_place",
    "empty_input": "first_row",
    "bad_values": "forgiving",
    "bad_lengths": "careless",
    "least_reward": "lenient",
}


@lru_cache
def report(name: str) -> CheckReport:
    return check_algorithm(f"{__name__}:{name}")


def failed(name: str) -> list[str]:
    return [finding.check for finding in report(name).failed]


@pytest.mark.parametrize(("check", "name"), [*WRONG.items(), ("scale", "not_growing"), ("scale", "not_staying")])
def test_each_check_of_an_estimator_finds_a_wrong_one(check: str, name: str) -> None:
    assert check in failed(name)


def test_there_is_a_wrong_estimator_for_each_check() -> None:
    assert {finding.check for finding in report("lenient").findings} == {*WRONG, "scale"}


def overflowing(inputs: LossInputs, config: LossConfig) -> TokenLosses:
    ratios_L = (inputs.logprobs_L - inputs.behaviour_logprobs_L).exp()
    return TokenLosses(losses_L=-ratios_L * inputs.advantages_L)


def muddled(inputs: LossInputs, config: LossConfig) -> TokenLosses:
    """Depends on places and on chance, hides what is not finite and writes into its inputs."""
    places_L = 1.0 + torch.arange(len(inputs.logprobs_L))
    losses_L = -torch.nan_to_num(inputs.advantages_L) * torch.nan_to_num(inputs.logprobs_L) * places_L + torch.rand(1)
    inputs.advantages_L.zero_()
    return TokenLosses(losses_L=losses_L)


MUDDLED = {"repeatable", "permutation", "alone", "packing", "micro_batches", "ranks", "on_policy_gradient", "differences", "unchanged_inputs", "bad_values"}


def test_each_check_of_a_loss_finds_a_wrong_one() -> None:
    assert failed("overflowing") == ["finite"]
    assert set(failed("muddled")) >= MUDDLED


def test_there_is_a_wrong_loss_for_each_check() -> None:
    # A loss is never shown padding, and need not keep scale and shift: those two are told as notes.
    assert {finding.check for finding in report("muddled").findings} == {"finite", *MUDDLED, "padding", "scale", "shift"}
