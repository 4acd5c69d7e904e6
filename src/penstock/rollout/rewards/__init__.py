"""Reward functions of users, run outside of the worker's process.

    def reward(messages, ground_truth):
        return 1.0 if messages[-1]["content"] == ground_truth else 0.0

- `RewardPool`: warm child processes that call such a function, a `Judge`. What hangs, exits, floods or returns no number is an `InfraError`.
- `judge_of`: the pool that an environment's settings ask for.
- `RewardConfig`: which function, and what it may use.
"""

from penstock.rollout.rewards.config import RewardConfig
from penstock.rollout.rewards.pool import RewardPool, judge_of

__all__ = ["RewardConfig", "RewardPool", "judge_of"]
