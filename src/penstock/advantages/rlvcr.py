"""RLVCR: an episode's credit, and beside it how much a step's thinking level helped compared with the three levels that were not chosen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.advantages._columns import column_with_gaps, finite_column, in_range, is_finite, matching_column, one_of, rows_of
from penstock.advantages._deviations import NORMS, deviations, saturated, saturated_sum
from penstock.advantages._labels import Labels, groups_of
from penstock.advantages._thinking import Steps, steps_of, trajectory_part
from penstock.advantages.declaration import declares
from penstock.types import BoolArray, Float64Array

SIGNALS = ("confidence", "neg_entropy")


@declares(batch_wide=True, ignores_shift=True)
def rlvcr(
    rewards: npt.ArrayLike,
    group: Labels,
    confidence: npt.ArrayLike,
    cost: npt.ArrayLike,
    thinking_group: Labels,
    *,
    trajectory: Labels | None = None,
    base: npt.ArrayLike | None = None,
    chosen: npt.ArrayLike | None = None,
    level: Labels | None = None,
    signal: str = "confidence",
    step_advantage_w: float = 1.0,
    thinking_diversity_w: float = 0.0,
    thinking_cost_alpha: float = 0.0,
    cost_max: float = 250,
    mode: str = "mean_norm",
) -> Float64Array:
    """Advantages of steps under each of their four thinking levels, one per row.

        A       = A_traj + step_advantage_w * A_think
        A_think = R_k - mean(R)       over the four levels of the step
        R       = confidence + thinking_cost_alpha * (0.5 - min(cost / cost_max, 1))

    A row is one level of one step: rows with the same `thinking_group` label are one step, -1 is a step that was not expanded (its confidence is NaN). Only
    the row of the level that was sampled is trained. A_traj is the reward minus the mean of the group, in which a trajectory counts once, or without
    `trajectory` labels a step; or it is `base`, ready-made. In mode `mean_std_norm` both parts are divided by their std + 1e-6 (ddof 1).
    `thinking_diversity_w` multiplies A_think of a step by (1 - share) * w + (1 - w), where share is that of its level among the chosen levels of all steps;
    it needs `chosen` and `level`. A step that was not expanded counts there too, unless its level is not known (0 or None). With signal `neg_entropy` the
    column holds entropies of the action, in nats, negated or not: the less, the better. A step without exactly four rows of known confidence keeps A_traj
    alone. Finite for all finite input. Empty input gives empty output. ValueError: NaN or infinity elsewhere, lengths that differ, rows of one step that
    disagree about reward, group or trajectory, an unknown or impossible option.

    RL with variational chain reasoning; the form that was published later is `copo` (Yang et al. 2026, arXiv:2602.12662).

    >>> rlvcr([1.0] * 4 + [0.0], ["g"] * 5, [0.9, 0.5, 0.5, 0.5, np.nan], [0, 10, 50, 200, 0], [7, 7, 7, 7, -1]).round(4)
    array([ 0.8,  0.4,  0.4,  0.4, -0.5])
    """
    one_of(mode, NORMS, name="mode")
    is_finite(step_advantage_w, name="step_advantage_w")
    rewards_N = finite_column(rewards, name="rewards")
    column_N = column_with_gaps(confidence, len(rewards_N), name="confidence")
    steps = steps_of(thinking_group, column_N)
    trajectory_N = trajectory_part(rewards_N, group, steps, trajectory=trajectory, base=base, norm=mode)
    thinking_N = _thinking_part(column_N, cost, steps, signal=signal, alpha=thinking_cost_alpha, cost_max=cost_max, mode=mode)
    factor_N = _diversity(steps, chosen, level, thinking_diversity_w)
    return saturated_sum(trajectory_N, saturated(saturated(thinking_N, factor_N), step_advantage_w))


def thinking_advantages(
    confidence: npt.ArrayLike,
    cost: npt.ArrayLike,
    thinking_group: Labels,
    *,
    signal: str = "confidence",
    thinking_cost_alpha: float = 0.0,
    cost_max: float = 250,
    mode: str = "mean_norm",
) -> Float64Array:
    """A_think of `rlvcr` alone, one per row: for whoever stores it beside a reply. 0 for steps without exactly four rows of known confidence.

    >>> thinking_advantages([0.9, 0.5, 0.5, 0.5, np.nan], [0, 10, 50, 200, 0], [7, 7, 7, 7, -1]).round(4)
    array([ 0.3, -0.1, -0.1, -0.1,  0. ])
    """
    one_of(mode, NORMS, name="mode")
    column_N = column_with_gaps(confidence, name="confidence")
    steps = steps_of(thinking_group, column_N)
    return _thinking_part(column_N, cost, steps, signal=signal, alpha=thinking_cost_alpha, cost_max=cost_max, mode=mode)


def _thinking_part(column_N: Float64Array, cost: npt.ArrayLike, steps: Steps, *, signal: str, alpha: float, cost_max: float, mode: str) -> Float64Array:
    """A_think before diversity."""
    scores_N = _scores(column_N, cost, steps, signal=signal, alpha=alpha, cost_max=cost_max)
    thinking_N = np.zeros(len(column_N))
    complete_M = steps.complete_M
    thinking_N[complete_M] = deviations(scores_N[complete_M], steps.groups.of_rows(complete_M)).normalised(mode)
    return thinking_N


def _scores(column_N: Float64Array, cost: npt.ArrayLike, steps: Steps, *, signal: str, alpha: float, cost_max: float) -> Float64Array:
    """R of each row; only those of complete steps mean anything."""
    one_of(signal, SIGNALS, name="signal")
    is_finite(alpha, name="thinking_cost_alpha")
    is_finite(cost_max, name="cost_max")
    if cost_max <= 0:
        raise ValueError(f"cost_max is {cost_max!r}; it must be above 0")
    cost_N = column_with_gaps(cost, len(column_N), name="cost")
    bad_M = steps.complete_M[~(cost_N[steps.complete_M] >= 0)]
    if len(bad_M):
        raise ValueError(f"cost[{bad_M[0]}] is {cost_N[bad_M[0]]}; it must be a finite number, 0 or more, where a step has four levels")
    quality_N = column_N if signal == "confidence" else _negated_entropies(column_N)
    saved_N = 0.5 - np.minimum(np.nan_to_num(cost_N), cost_max) / cost_max
    return saturated_sum(np.nan_to_num(quality_N), saturated(saved_N, alpha))


def _negated_entropies(column_N: Float64Array) -> Float64Array:
    """An entropy is never below 0, so the sign tells whether a column was negated already; one that is neither is a mistake."""
    if (column_N > 0).any() and (column_N < 0).any():
        row = int(np.argmax(column_N < 0))
        raise ValueError(f"confidence[{row}] is {column_N[row]}, but row {int(np.argmax(column_N > 0))} is above 0; with signal neg_entropy all have one sign")
    return -np.abs(column_N)


def _diversity(steps: Steps, chosen: npt.ArrayLike | None, level: Labels | None, weight: float) -> Float64Array | float:
    """For each row how much its step's A_think counts: less, the more usual the chosen level is."""
    in_range(weight, 0.0, 1.0, name="thinking_diversity_w")
    num_rows = len(steps.expanded_N)
    chosen_N = None if chosen is None else _flags(chosen, num_rows)
    level = level if level is None or isinstance(level, np.ndarray) else rows_of(level, name="level")
    levels = None if level is None else groups_of(level, num_rows, name="level")
    if weight == 0:
        return 1.0
    if chosen_N is None or level is None or levels is None:
        missing = "chosen" if chosen_N is None else "level"
        raise ValueError(f"thinking_diversity_w is {weight}, which needs chosen and level; {missing} is None")
    picked_P = steps.groups.sums(chosen_N.astype(np.float64))
    wrong_N = steps.expanded_N & (picked_P[steps.groups.index_N] != 1)
    if wrong_N.any():
        row = int(np.argmax(wrong_N))
        raise ValueError(f"chosen marks {int(picked_P[steps.groups.index_N[row]])} rows of the thinking_group of row {row}; it must mark one")
    unknown_N = np.fromiter((value is None or value == 0 for value in level), np.bool_, num_rows)
    rows_S = np.flatnonzero(chosen_N & (steps.expanded_N | ~unknown_N))
    share_L = np.bincount(levels.index_N[rows_S], minlength=len(levels.sizes_P)) / max(len(rows_S), 1)
    share_P = np.zeros(len(steps.groups.sizes_P))
    share_P[steps.groups.index_N[rows_S]] = share_L[levels.index_N[rows_S]]
    return 1.0 - weight * share_P[steps.groups.index_N]


def _flags(chosen: npt.ArrayLike, num_rows: int) -> BoolArray:
    flags_N = matching_column(chosen, num_rows, name="chosen")
    wrong_N = (flags_N != 0) & (flags_N != 1)
    if wrong_N.any():
        row = int(np.argmax(wrong_N))
        raise ValueError(f"chosen[{row}] is {flags_N[row]}; it must be true or false")
    return np.asarray(flags_N == 1, dtype=np.bool_)
