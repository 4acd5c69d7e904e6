"""REINFORCE++: advantages in units of the whole batch's spread, so that no problem counts for more because its group happens to agree."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.advantages._columns import finite_column, not_negative, one_of, whole_number
from penstock.advantages._deviations import Deviations, deviations
from penstock.advantages._labels import Labels, groups_of
from penstock.advantages.declaration import declares
from penstock.types import Float64Array

BASELINES = ("batch", "group")


@declares(batch_wide=True, scale="stays", ignores_shift=True)
def reinforce_pp(rewards: npt.ArrayLike, group: Labels, *, baseline: str = "batch", eps: float = 1e-6, ddof: int = 1) -> Float64Array:
    """Advantages normalised over the batch, one per row.

        batch    A_i = (r_i - mean_batch(r)) / (std_batch(r) + eps)
        group    d_i = r_i - mean_group(r),   A_i = d_i / (std_batch(d) + eps)

    std with `ddof` (1: sample, 0: population) over all rows. In `group` the paper also subtracts the batch mean of d, which is 0. A constant batch, and in
    `group` a constant group and a group of one, give exactly 0; so does a batch of no more than `ddof` rows. Finite for all finite rewards. Empty input
    gives empty output. ValueError: NaN, infinity, lengths that differ, an unknown baseline.

    Hu et al. 2025, "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization", arXiv:2501.03262.

    >>> reinforce_pp([1.0, 0.0, 3.0, 0.0], ["a", "a", "b", "b"], eps=0.0, ddof=0).round(4)
    array([ 0.    , -0.8165,  1.633 , -0.8165])
    >>> reinforce_pp([1.0, 0.0, 3.0, 0.0], ["a", "a", "b", "b"], baseline="group", eps=0.0, ddof=0).round(4)
    array([ 0.4472, -0.4472,  1.3416, -1.3416])
    """
    one_of(baseline, BASELINES, name="baseline")
    not_negative(eps, name="eps")
    whole_number(ddof, 0, name="ddof")
    rewards_N = finite_column(rewards, name="rewards")
    groups = groups_of(group, len(rewards_N))
    if baseline == "group":
        return _over_batch_std(deviations(rewards_N, groups), eps=eps, ddof=ddof)
    whole = groups_of(np.zeros(len(rewards_N), dtype=np.intp), len(rewards_N))
    return deviations(rewards_N, whole).over_std(eps=eps, ddof=ddof)


def _over_batch_std(from_mean: Deviations, *, eps: float, ddof: int) -> Float64Array:
    """Deviations from group means, divided by their std over the batch; in units of the largest deviation, so that no square overflows or vanishes."""
    num_rows = len(from_mean.scaled_N)
    if num_rows <= ddof or not from_mean.scaled_N.any():
        return np.zeros(num_rows)
    # `frexp` gives a power of two an exponent that is one too large, so what follows counts in units of 2 ** (largest - 1).
    unit_exponent_N = np.frexp(from_mean.unit_P)[1][from_mean.groups.index_N]
    exponent_N = np.frexp(from_mean.scaled_N)[1] + unit_exponent_N
    largest = int(exponent_N[from_mean.scaled_N != 0].max())
    with np.errstate(under="ignore", over="ignore"):
        scaled_N = np.ldexp(from_mean.scaled_N, unit_exponent_N - largest)
        std = float(np.sqrt(np.sum(scaled_N * scaled_N) / (num_rows - ddof)))
        over_std_N: Float64Array = scaled_N / (std + float(np.ldexp(eps, 1 - largest)))
    return over_std_N
