"""Scores of an evaluation from its rewards. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, fsum


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the rewards of an evaluation come to. None and empty where every episode failed."""

    greedy: float | None
    avg_at_k: float | None
    pass_at: Mapping[int, float]


def scored(greedy_P: Sequence[float | None], sampled_PK: Sequence[Sequence[float | None]], *, solved_reward: float) -> Scores:
    """Scores of P problems with a greedy and K sampled rewards each; None is an episode that failed, which is in none of the means.

    Every problem weighs the same in `avg_at_k`, however many of its episodes failed; `pass_at` is over problems of which none did.

    >>> scored([1.0, None], [[1.0, 0.0], [0.0, None]], solved_reward=1.0)
    Scores(greedy=1.0, avg_at_k=0.25, pass_at={1: 0.5, 2: 1.0})
    """
    averages = [mean([reward for reward in rewards_K if reward is not None]) for rewards_K in sampled_PK]
    whole = [[reward for reward in rewards_K if reward is not None] for rewards_K in sampled_PK if rewards_K and None not in rewards_K]
    num_solved = [(len(rewards), sum(reward >= solved_reward for reward in rewards)) for rewards in whole]
    pass_at = {k: mean([pass_at_k(num, solved, k) for num, solved in num_solved]) for k in ks_of(len(whole[0]))} if whole else {}
    return Scores(
        greedy=mean([reward for reward in greedy_P if reward is not None]),
        avg_at_k=mean([average for average in averages if average is not None]),
        pass_at={k: value for k, value in pass_at.items() if value is not None},
    )


def pass_at_k(num_samples: int, num_solved: int, k: int) -> float:
    """Chance that at least one of k replies solves a problem of which `num_solved` of `num_samples` did: the unbiased estimate, 1 - C(n-c, k) / C(n, k).

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    if not 1 <= k <= num_samples or not 0 <= num_solved <= num_samples:
        raise ValueError(f"k must lie in 1..{num_samples} and solved in 0..{num_samples}, got {k} and {num_solved}")
    return 1.0 - comb(num_samples - num_solved, k) / comb(num_samples, k)


def mean(values: Sequence[float]) -> float | None:
    """None if there are none: a mean of nothing is not 0.

    >>> mean([1.0, 0.0])
    0.5
    """
    return fsum(values) / len(values) if values else None


def ks_of(num_samples: int) -> tuple[int, ...]:
    """The k for which pass@k is told: powers of two below the number of samples, and that number.

    >>> ks_of(6)
    (1, 2, 4, 6)
    """
    powers = [1 << power for power in range(num_samples.bit_length()) if 1 << power < num_samples]
    return (*powers, num_samples)
