"""ReMax: each try against what the policy gets when it does not explore."""

from __future__ import annotations

import numpy.typing as npt

from penstock.advantages._columns import finite_column, matching_column
from penstock.advantages._deviations import saturated_sum
from penstock.advantages._labels import Labels, groups_of
from penstock.advantages.declaration import declares
from penstock.types import Float64Array


@declares(scale="grows", ignores_shift=True)
def remax(rewards: npt.ArrayLike, group: Labels, greedy_rewards: npt.ArrayLike) -> Float64Array:
    """Rewards over the reward of the greedy try at the same problem, one per row.

        A_i = r_i - r_greedy

    `greedy_rewards` holds r_greedy in each row. Rows stand alone: groups are checked and otherwise not used, and a group of one is trained like any other.
    Finite for all finite rewards: what is beyond the largest float64 becomes that float. Empty input gives empty output. ValueError: NaN, infinity, lengths
    that differ.

    Li et al. 2023, "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language Models", arXiv:2310.10505.

    >>> remax([1.0, 0.0, 0.25], ["a", "a", "b"], [0.5, 0.5, 0.0])
    array([ 0.5 , -0.5 ,  0.25])
    """
    rewards_N = finite_column(rewards, name="rewards")
    groups_of(group, len(rewards_N))
    return saturated_sum(rewards_N, -matching_column(greedy_rewards, len(rewards_N), name="greedy_rewards"))
