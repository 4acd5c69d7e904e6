"""CoPO: an episode's credit, shared out over the thinking levels of each step by how sure each makes the model of its action."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.advantages._columns import column_with_gaps, finite_column
from penstock.advantages._deviations import saturated
from penstock.advantages._labels import Groups, Labels
from penstock.advantages._thinking import steps_of, trajectory_part
from penstock.advantages.declaration import declares
from penstock.types import Float64Array

_LEAST_RANGE = 1e-6


@declares(trains_injected=True, scale="stays", ignores_shift=True)
def copo(
    rewards: npt.ArrayLike,
    group: Labels,
    confidence: npt.ArrayLike,
    thinking_group: Labels,
    *,
    trajectory: Labels | None = None,
    base: npt.ArrayLike | None = None,
) -> Float64Array:
    """Advantages of all four thinking levels of steps, one per row.

        A_k = A_traj * w_k,      w_k = exp(2 p_k) / mean_j exp(2 p_j)
        p   = (c - min(c)) / (max(c) - min(c))      confidence over the four levels of the step; all 0.5 if the range is at most 1e-6

    A row is one level of one step: rows with the same `thinking_group` label are one step, -1 is a step that was not expanded (its confidence is NaN).
    A_traj is GRPO's (r - mean) / (std + 1e-6), ddof 1, over trajectories, or without `trajectory` labels over steps, each counted once however many
    alternatives it has; or it is `base`, ready-made. The weights of a step have mean 1. A step without exactly four rows of known confidence keeps A_traj.
    All four are trained, the three that were not sampled too: see `trains_injected`. Finite for all finite input. Empty input gives empty output. ValueError:
    NaN in rewards, infinity, lengths that differ, rows of one step that disagree about reward, group or trajectory.

    Yang et al. 2026, "Think Fast and Slow: Step-Level Cognitive Depth Adaptation for LLM Agents", arXiv:2602.12662 (Cognition-aware Policy Optimization).

    >>> copo([1.0] * 4 + [0.0], ["g"] * 5, [0.9, 0.1, 0.5, 0.1, np.nan], [7, 7, 7, 7, -1]).round(4)
    array([ 1.7262,  0.2336,  0.635 ,  0.2336, -0.7071])
    """
    rewards_N = finite_column(rewards, name="rewards")
    confidence_N = column_with_gaps(confidence, len(rewards_N), name="confidence")
    steps = steps_of(thinking_group, confidence_N)
    trajectory_N = trajectory_part(rewards_N, group, steps, trajectory=trajectory, base=base, norm="mean_std_norm")
    weight_N = np.ones(len(rewards_N))
    weight_N[steps.complete_M] = _weights(confidence_N[steps.complete_M], steps.groups.of_rows(steps.complete_M))
    return saturated(trajectory_N, weight_N)


def _weights(confidence_M: Float64Array, steps: Groups) -> Float64Array:
    """w of each row of complete steps. In halves, so that the range of two huge numbers is one."""
    half_M = confidence_M / 2
    low_P, high_P = np.full(len(steps.sizes_P), np.inf), np.full(len(steps.sizes_P), -np.inf)
    np.minimum.at(low_P, steps.index_N, half_M)
    np.maximum.at(high_P, steps.index_N, half_M)
    range_M = (high_P - low_P)[steps.index_N]
    wide_M = range_M > _LEAST_RANGE / 2
    place_M = np.where(wide_M, (half_M - low_P[steps.index_N]) / np.where(wide_M, range_M, 1.0), 0.5)
    risen_M = np.exp(2 * place_M)
    weights_M: Float64Array = risen_M / (steps.sums(risen_M) / np.maximum(steps.sizes_P, 1))[steps.index_N]
    return weights_M
