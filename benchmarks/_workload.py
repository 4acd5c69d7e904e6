"""The work that benchmarks are measured on, so that every figure speaks of the same."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class GroupWorkload:
    """Groups of replies to shared prompts, long-tailed, as GRPO trains on them."""

    prompts: list[list[int]]
    replies: list[list[list[int]]]
    advantages: np.ndarray

    @property
    def lengths(self) -> list[int]:
        """Tokens of each reply."""
        return [len(reply) for group in self.replies for reply in group]


def group_workload(*, groups: int = 8, members: int = 8, prompt: int = 200, mean: float = 100, longest: int = 1024, seed: int = 0) -> GroupWorkload:
    """Lengths are log-normal around `mean`, cut at `longest`; ids are printable bytes."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.round(rng.lognormal(math.log(mean) - 0.5, 1.0, (groups, members))), 4, longest).astype(int)
    prompts = [rng.integers(32, 127, prompt).tolist() for _ in range(groups)]
    replies = [[rng.integers(32, 127, length).tolist() for length in row] for row in lengths]
    return GroupWorkload(prompts, replies, rng.normal(size=(groups, members)).astype(np.float32))
