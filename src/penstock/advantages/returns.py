"""Discounted returns: what an episode still brings after each step."""

from __future__ import annotations

import numpy.typing as npt

from penstock.advantages._columns import finite_column, in_range
from penstock.advantages._deviations import saturated
from penstock.advantages._labels import Labels, groups_of
from penstock.advantages._scan import Timeline, headroom
from penstock.types import Float64Array


def discounted_returns(rewards: npt.ArrayLike, trajectory: Labels, *, gamma: float) -> Float64Array:
    """Returns of steps, one per row.

        G_t = r_t + gamma * G_(t+1)      inside one trajectory, 0 after its last row

    Rows of one trajectory come in time order; trajectories may interleave. gamma lies in 0 to 1. Finite for all finite rewards: what is beyond the largest
    float64 becomes that float. Empty input gives empty output. ValueError: NaN, infinity, lengths that differ, an impossible gamma.

    Sutton and Barto 2018, "Reinforcement Learning: An Introduction", section 3.3.

    >>> discounted_returns([0.0, 1.0, 0.0, 2.0], ["a", "b", "a", "a"], gamma=0.5)
    array([0.5, 1. , 1. , 2. ])
    """
    in_range(gamma, 0.0, 1.0, name="gamma")
    rewards_N = finite_column(rewards, name="rewards")
    return returns_along(rewards_N, Timeline(groups_of(trajectory, len(rewards_N), name="trajectory")), gamma)


def returns_along(rewards_N: Float64Array, timeline: Timeline, gamma: float) -> Float64Array:
    """`discounted_returns` of checked rewards."""
    scale = headroom(timeline.longest, rewards_N)
    return saturated(timeline.discounted_sums(saturated(rewards_N, scale), gamma), 1.0 / scale)
