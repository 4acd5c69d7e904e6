"""Rows of thinking levels: which of them are one step, which steps have all four, and what their trajectory earned. Used by `rlvcr` and `copo`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.advantages._columns import matching_column, rows_of
from penstock.advantages._labels import Groups, IntpArray, Labels, check_equal_inside, check_inside, groups_of
from penstock.advantages.gigpo import episode_part
from penstock.types import BoolArray, Float64Array

NUM_LEVELS = 4
NOT_EXPANDED = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Rows that belong to the same step of an agent."""

    groups: Groups
    """One number per step; a row that was not expanded is a step of its own."""
    expanded_N: BoolArray
    complete_M: IntpArray
    """Rows of the steps that have four rows, each with a known confidence."""


def steps_of(thinking_group: Labels, confidence_N: Float64Array) -> Steps:
    """Read labels: equal ones are one step, -1 is a step without alternatives. A step with other than four rows, or with an unknown confidence, is not
    complete: one of its alternatives failed."""
    labels = thinking_group if isinstance(thinking_group, np.ndarray) else rows_of(thinking_group, name="thinking_group")
    labelled = groups_of(labels, len(confidence_N), name="thinking_group")
    alone_N = _equals_marker(labels)
    index_N = labelled.index_N.copy()
    index_N[alone_N] = len(labelled.sizes_P) + np.arange(np.count_nonzero(alone_N))
    groups = Groups(index_N=index_N, sizes_P=np.bincount(index_N))
    known_P = groups.sums((~np.isnan(confidence_N)).astype(np.float64))
    complete_P = (groups.sizes_P == NUM_LEVELS) & (known_P == NUM_LEVELS)
    return Steps(groups=groups, expanded_N=~alone_N, complete_M=np.flatnonzero(complete_P[index_N] & ~alone_N))


def _equals_marker(labels: npt.NDArray[np.generic] | list[object]) -> BoolArray:
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "iuf":
        return np.asarray(labels == NOT_EXPANDED, dtype=np.bool_)
    return np.fromiter((label == NOT_EXPANDED for label in labels), np.bool_, len(labels))


def trajectory_part(rewards_N: Float64Array, group: Labels, steps: Steps, *, trajectory: Labels | None, base: npt.ArrayLike | None, norm: str) -> Float64Array:
    """A_traj of each row: `base` where it is given, else normalised rewards, in whose statistics a trajectory, or without labels a step, counts once."""
    group = group if isinstance(group, np.ndarray) else rows_of(group, name="group")
    groups = groups_of(group, len(rewards_N))
    check_inside(steps.groups, groups, inner_name="thinking_group", outer_name="group", labels=group)
    check_equal_inside(rewards_N, steps.groups, name="rewards", inner_name="thinking_group")
    counted = steps.groups
    if trajectory is not None:
        trajectory = trajectory if isinstance(trajectory, np.ndarray) else rows_of(trajectory, name="trajectory")
        counted = groups_of(trajectory, len(rewards_N), name="trajectory")
        check_inside(steps.groups, counted, inner_name="thinking_group", outer_name="trajectory", labels=trajectory)
        check_inside(counted, groups, inner_name="trajectory", outer_name="group", labels=group)
        check_equal_inside(rewards_N, counted, name="rewards", inner_name="trajectory")
    if base is not None:
        base_N = matching_column(base, len(rewards_N), name="base")
        check_equal_inside(base_N, steps.groups, name="base", inner_name="thinking_group")
        return base_N
    return episode_part(rewards_N, counted, groups, norm=norm, stats_over="trajectories", singleton="zero")
