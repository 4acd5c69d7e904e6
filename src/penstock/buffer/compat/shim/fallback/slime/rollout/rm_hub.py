"""Rewards by a rule."""

from __future__ import annotations

from penstock.buffer.compat.shim.generator.reward_utils.math_utils import math_reward


def get_deepscaler_rule_based_reward(response: str, label: str | float) -> int:
    """1 if the final answer of `response` equals `label`, else 0."""
    return math_reward(response, str(label))
