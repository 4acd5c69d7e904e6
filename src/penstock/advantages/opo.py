"""OPO: the baseline with the least variance, under which long replies weigh more."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.advantages._columns import check_bounds, finite_column, matching_column
from penstock.advantages._deviations import deviations, saturated
from penstock.advantages._labels import Labels, groups_of
from penstock.advantages.declaration import declares
from penstock.types import Float64Array


@declares(scale="grows", ignores_shift=True)
def opo(rewards: npt.ArrayLike, group: Labels, lengths: npt.ArrayLike) -> Float64Array:
    """Advantages over the length-weighted mean of the group, one per row.

        A_i = r_i - sum(l * r) / sum(l)

    sums run over the rows with the label of row i; `lengths` are the sampled tokens of each row, 0 or more. The gradient of a reply grows with the root of
    its length, which makes this the baseline of least variance. A constant group, a group of one and a group without any token give exactly 0. Finite for
    all finite rewards: what is beyond the largest float64 becomes that float. Empty input gives empty output. ValueError: NaN, infinity, lengths below 0,
    columns that differ in length.

    Hao et al. 2025, "On-Policy RL with Optimal Reward Baseline", arXiv:2505.23585.

    >>> opo([1.0, 0.0, 0.0], ["a", "a", "a"], [2, 1, 1])
    array([ 0.5, -0.5, -0.5])
    """
    rewards_N = finite_column(rewards, name="rewards")
    lengths_N = matching_column(lengths, len(rewards_N), name="lengths")
    check_bounds(lengths_N, name="lengths", least=0)
    groups = groups_of(group, len(rewards_N))
    from_mean = deviations(rewards_N, groups)
    # As shares of the longest, so that no product overflows.
    longest_P = groups.largest(lengths_N)
    share_N = lengths_N / np.where(longest_P > 0, longest_P, 1.0)[groups.index_N]
    weight_P = groups.sums(share_N)
    shift_P = groups.sums(share_N * from_mean.scaled_N) / np.where(weight_P > 0, weight_P, 1.0)
    shifted_N = np.where((weight_P > 0)[groups.index_N], from_mean.scaled_N - shift_P[groups.index_N], 0.0)
    return saturated(shifted_N, from_mean.unit_P[groups.index_N])
