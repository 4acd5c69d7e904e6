"""GAE: advantages from a critic's values, between one-step errors and whole returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy.typing as npt

from penstock.advantages._columns import finite_column, in_range, matching_column
from penstock.advantages._deviations import saturated
from penstock.advantages._labels import Labels, groups_of
from penstock.advantages._scan import Timeline, headroom
from penstock.advantages.declaration import declares
from penstock.types import Float64Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GaeAdvantages:
    """One entry per step row."""

    total: Float64Array
    """The advantages."""
    returns: Float64Array
    """Advantage plus value: what a critic is fitted to."""


@declares(scale="grows")
def gae(
    step_rewards: npt.ArrayLike, trajectory: Labels, values: npt.ArrayLike, *, gamma: float = 1.0, lam: float = 0.95, bootstrap: npt.ArrayLike | None = None
) -> GaeAdvantages:
    """Generalised advantage estimates of steps.

        delta_t = r_t + gamma * V_(t+1) - V_t,      A_t = delta_t + gamma * lam * A_(t+1)

    `values` are the critic's V of the state before each step. V after the last row of a trajectory is 0, or what `bootstrap` (one per row) says in that row,
    for episodes that were cut off. Rows of one trajectory come in time order; trajectories may interleave. Finite for all finite input: what is beyond the
    largest float64 becomes that float. Empty input gives empty output. ValueError: NaN, infinity, lengths that differ, gamma or lam outside of 0 to 1.

    Schulman et al. 2015, "High-Dimensional Continuous Control Using Generalized Advantage Estimation", arXiv:1506.02438.

    >>> found = gae([0.0, 1.0], ["a", "a"], [0.5, 0.75], gamma=1.0, lam=0.5)
    >>> found.total, found.returns
    (array([0.375, 0.25 ]), array([0.875, 1.   ]))
    """
    in_range(gamma, 0.0, 1.0, name="gamma")
    in_range(lam, 0.0, 1.0, name="lam")
    rewards_N = finite_column(step_rewards, name="step_rewards")
    values_N = matching_column(values, len(rewards_N), name="values")
    timeline = Timeline(groups_of(trajectory, len(rewards_N), name="trajectory"))
    ends_N = values_N[:0] if bootstrap is None else matching_column(bootstrap, len(rewards_N), name="bootstrap")
    # A sum of errors holds up to three huge terms for each step, and a return one value more.
    scale = headroom(3 * timeline.longest + 1, rewards_N, values_N, ends_N)
    scaled_N = values_N * scale
    next_N = timeline.following(scaled_N, 0.0 if bootstrap is None else ends_N * scale)
    advantages_N = timeline.discounted_sums(rewards_N * scale + gamma * next_N - scaled_N, gamma * lam)
    return GaeAdvantages(total=saturated(advantages_N, 1.0 / scale), returns=saturated(advantages_N + scaled_N, 1.0 / scale))
