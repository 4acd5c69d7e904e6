"""GiGPO: an episode against the others of its group, and each step against steps that were taken from the same state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.advantages._columns import finite_column, in_range, is_finite, matching_column, one_of
from penstock.advantages._deviations import NORMS, deviations, saturated, saturated_sum
from penstock.advantages._labels import Groups, Labels, check_equal_inside, check_inside, groups_of
from penstock.advantages._scan import Timeline, headroom
from penstock.advantages.anchors import Anchors, anchored
from penstock.advantages.declaration import declares
from penstock.advantages.returns import returns_along
from penstock.types import BoolArray, Float64Array

COMBINATIONS = ("additive", "omega")
STATISTICS = ("trajectories", "steps")
SINGLETONS = ("zero", "raw")
_ROWS_AT_ONCE = 1 << 16
"""512 KB a column."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GigpoAdvantages:
    """One entry per step row."""

    total: Float64Array
    """What is trained with: the episode and the step part, combined."""
    episode: Float64Array
    """A_E of the row's trajectory."""
    step: Float64Array
    """A_S of the row."""
    returns: Float64Array
    """G_t, which the step part compares."""


@declares(scale="either")
def gigpo(
    step_rewards: npt.ArrayLike,
    trajectory: Labels,
    group: Labels,
    anchor: Anchors,
    *,
    scores: npt.ArrayLike | None = None,
    gamma: float = 0.95,
    norm: str = "mean_norm",
    w: float = 1.0,
    combine: str = "additive",
    omega: float = 0.5,
    stats_over: str = "trajectories",
    singleton: str = "zero",
    similarity: float | None = None,
) -> GigpoAdvantages:
    """Advantages of steps: group-in-group.

        G_t = r_t + gamma * G_(t+1)
        A_E = score - mean(score)        over the trajectories of the group
        A_S = G_t - mean(G)              over the steps of the group with the same anchor
        additive   A = A_E + w * A_S                         (the paper)
        omega      A = omega * A_E + (1 - omega) * A_S

    In `mean_std_norm` both parts are divided by their std + 1e-6 (ddof 1). Rows are steps; those of one trajectory come in time order, trajectories may
    interleave. `scores` (one per row, equal inside a trajectory) default to the sum of a trajectory's rewards. `anchor` is the bare observation before the
    step: text or anything JSON-like, where 1, 1.0 and True differ; None takes no part and has A_S = 0. With `similarity` (0.95, say) texts that resemble
    each other are one state. `stats_over="steps"` counts a trajectory once for each of its steps in A_E. A group of one trajectory has A_E = 0, or with
    `singleton="raw"` its score; a state that was visited once has A_S = 0. Finite for all finite rewards. Empty input gives empty output. ValueError: NaN,
    infinity, lengths that differ, a trajectory in two groups or with two scores, an unknown or impossible option.

    Feng et al. 2025, "Group-in-Group Policy Optimization for LLM Agent Training", arXiv:2505.10978.

    >>> found = gigpo([0.0, 1.0, 0.0, 0.0], ["a", "a", "b", "b"], [0, 0, 0, 0], ["hall", "kitchen", "hall", "cellar"], gamma=0.5)
    >>> found.returns, found.episode
    (array([0.5, 1. , 0. , 0. ]), array([ 0.5,  0.5, -0.5, -0.5]))
    >>> found.step, found.total
    (array([ 0.25,  0.  , -0.25,  0.  ]), array([ 0.75,  0.5 , -0.75, -0.5 ]))
    """
    one_of(norm, NORMS, name="norm")
    one_of(combine, COMBINATIONS, name="combine")
    one_of(stats_over, STATISTICS, name="stats_over")
    one_of(singleton, SINGLETONS, name="singleton")
    in_range(gamma, 0.0, 1.0, name="gamma")
    in_range(omega, 0.0, 1.0, name="omega")
    is_finite(w, name="w")
    rewards_N = finite_column(step_rewards, name="step_rewards")
    trajectories = groups_of(trajectory, len(rewards_N), name="trajectory")
    groups = groups_of(group, len(rewards_N))
    check_inside(trajectories, groups, inner_name="trajectory", outer_name="group", labels=group)
    scores_N = None if scores is None else matching_column(scores, len(rewards_N), name="scores")
    if scores_N is not None:
        check_equal_inside(scores_N, trajectories, name="scores", inner_name="trajectory")
    state_N, anchored_N = anchored(anchor, groups, similarity=similarity)
    weights = (1.0, w) if combine == "additive" else (omega, 1.0 - omega)
    # All four columns in one piece: an allocator keeps large pieces for the next call, and hands out fresh pages for each of several smaller ones.
    total_N, episode_N, step_N, returns_N = np.empty((4, len(rewards_N)))
    # No row depends on rows of other groups, so that large columns are worked on a few groups at a time.
    for rows in groups.stretches(_ROWS_AT_ONCE):
        own, peers = trajectories.renumbered(rows), groups.renumbered(rows)
        scores_M = _sums(rewards_N[rows], own) if scores_N is None else scores_N[rows]
        episode_N[rows] = episode_M = episode_part(scores_M, own, peers, norm=norm, stats_over=stats_over, singleton=singleton)
        returns_N[rows] = returns_M = returns_along(rewards_N[rows], Timeline(own), gamma)
        step_N[rows] = step_M = step_part(returns_M, peers.split_by(state_N[rows]), anchored_N[rows], norm=norm)
        total_N[rows] = saturated_sum(saturated(episode_M, weights[0]), saturated(step_M, weights[1]))
    return GigpoAdvantages(total=total_N, episode=episode_N, step=step_N, returns=returns_N)


def _sums(rewards_N: Float64Array, trajectories: Groups) -> Float64Array:
    """The sum of rewards of each row's trajectory."""
    scale = headroom(int(trajectories.sizes_P.max(initial=0)), rewards_N)
    return saturated(trajectories.sums(saturated(rewards_N, scale)), 1.0 / scale)[trajectories.index_N]


def episode_part(scores_N: Float64Array, trajectories: Groups, groups: Groups, *, norm: str, stats_over: str, singleton: str) -> Float64Array:
    """A_E of each row; a trajectory counts once, or once per step."""
    first_P = trajectories.first_row_P
    rows_T = first_P[first_P >= 0]
    by_group = groups.of_rows(rows_T)
    if stats_over == "steps":
        episode_N = deviations(scores_N, groups).normalised(norm)
    else:
        of_trajectory_P = np.zeros(len(first_P))
        of_trajectory_P[first_P >= 0] = deviations(scores_N[rows_T], by_group).normalised(norm)
        episode_N = of_trajectory_P[trajectories.index_N]
    if singleton == "raw":
        return np.where((by_group.sizes_P == 1)[groups.index_N], scores_N, episode_N)
    return episode_N


def step_part(returns_N: Float64Array, states: Groups, anchored_N: BoolArray, *, norm: str) -> Float64Array:
    """A_S of each row: its return against those of the steps from the same state; 0 for a row without anchor."""
    step_N = deviations(returns_N, states).normalised(norm)
    step_N[~anchored_N] = 0.0
    return step_N
