"""Rewards shaped so that the best of k tries counts, and not each try alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.advantages._columns import finite_column, whole_number
from penstock.advantages._deviations import saturated
from penstock.advantages._labels import Groups, IntpArray, Labels, groups_of
from penstock.advantages._scan import Timeline
from penstock.types import Float64Array


def pass_at_k_rewards(rewards: npt.ArrayLike, group: Labels, *, k: int) -> Float64Array:
    """A transform: each reward becomes the mean, over all teams of k members of its group that it is in, of the team's best reward.

        r'_i = mean over I with i in I, |I| = k of max_(j in I) r_j

    It has the units of a reward and goes into any estimator in place of the reward; k = 1 changes nothing. With rewards of 0 and 1, n members and c
    successes: 1 for a success, 1 - C(n-1-c, k-1) / C(n-1, k-1) for a failure. It is n/k times the reward of the first paper. A group with fewer than k
    members is one team. Members with equal rewards stay equal, bit for bit, and a constant group stays as it is. Empty input gives empty output. ValueError:
    NaN, infinity, lengths that differ, a k below 1.

    Walder and Karkhanis 2025, "Pass@K Policy Optimization: Solving Harder Reinforcement Learning Problems", arXiv:2505.15201;
    Chen et al. 2025, "Pass@k Training for Adaptively Balancing Exploration and Exploitation of Large Reasoning Models", arXiv:2508.10751.

    >>> pass_at_k_rewards([1.0, 0.0, 0.0, 0.0], ["a", "a", "a", "a"], k=2).round(4)
    array([1.    , 0.3333, 0.3333, 0.3333])
    """
    whole_number(k, 1, name="k")
    rewards_N = finite_column(rewards, name="rewards")
    groups = groups_of(group, len(rewards_N))
    if k == 1 or not len(rewards_N):
        return rewards_N.copy()
    order_N = np.lexsort((rewards_N, groups.index_N))
    ranked = groups.of_rows(order_N)
    unit_N = _units(rewards_N, groups)[ranked.index_N]
    shaped_N = np.empty_like(rewards_N)
    shaped_N[order_N] = saturated(_shaped_in_order(rewards_N[order_N] / unit_N, ranked, int(k)), unit_N)
    return shaped_N


def _units(rewards_N: Float64Array, groups: Groups) -> Float64Array:
    """A power of two for each group, so that differences inside it cannot overflow and scaling rounds nothing."""
    unit_P: Float64Array = np.ldexp(1.0, np.clip(np.frexp(groups.largest(np.abs(rewards_N)))[1], -1020, 1023))
    return unit_P


def _shaped_in_order(rewards_N: Float64Array, ranked: Groups, k: int) -> Float64Array:
    """The transform of rows that stand group by group, from the worst to the best.

    The team's best is at least the member's own reward, and rises above each higher one with the chance that somebody of that rank or better is in the
    team. Written in rises all terms have one sign, and a group without rises is left alone.
    """
    sizes_N = ranked.sizes_P[ranked.index_N]
    start_N = (np.cumsum(ranked.sizes_P) - ranked.sizes_P)[ranked.index_N]
    rank_N = np.arange(len(rewards_N)) - start_N
    rises_N = np.where(rank_N > 0, np.diff(rewards_N, prepend=0.0), 0.0)
    above_N = Timeline(ranked).discounted_sums(rises_N * _chance_of_rank(rank_N, sizes_N, k), 1.0)
    # Row t itself holds the rise up to t, so what lies above a row begins at the next one; a last row has nothing above it.
    above_N = np.where(rank_N == sizes_N - 1, 0.0, np.append(above_N[1:], 0.0))
    # Ties differ in the order of additions only; all take the sum of the best of them.
    best_N = _last_of_run((rises_N != 0) | (rank_N == 0))
    return rewards_N + above_N[best_N]


def _chance_of_rank(rank_N: IntpArray, sizes_N: IntpArray, k: int) -> Float64Array:
    """Chance that a team of a lower member has somebody of at least this rank (from 0): 1 - C(rank - 1, k - 1) / C(n - 1, k - 1)."""
    without_N = np.ones(len(rank_N))
    for place in range(k - 1):
        # With k over n the team is the whole group, and nobody is missing from it.
        left_N = np.maximum(rank_N - 1 - place, 0)
        without_N *= left_N / np.maximum(sizes_N - 1 - place, 1)
        if not without_N.any():
            break
    return 1.0 - without_N


def _last_of_run(starts_N: npt.NDArray[np.bool_]) -> IntpArray:
    """For each row the last row of its run; runs begin where `starts_N` is true."""
    firsts_R = np.flatnonzero(starts_N)
    lasts_R = np.append(firsts_R[1:], len(starts_N)) - 1
    last_N: IntpArray = lasts_R[np.cumsum(starts_N) - 1]
    return last_N
