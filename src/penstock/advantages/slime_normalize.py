"""The default normalisation of rewards in slime's rollout buffer, kept for those who trained with it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.advantages._columns import finite_column
from penstock.advantages._deviations import deviations
from penstock.advantages._labels import Labels, groups_of
from penstock.types import Float64Array

_EPS = 1e-8


def slime_normalize(rewards: npt.ArrayLike, group: Labels) -> Float64Array:
    """Rewards normalised in their group as the rollout buffer does by default, one per row.

        A_i = (r_i - mean(r)) / (std(r) + 1e-8)      over the rows of the group with 0 <= r <= 1; std with ddof 0

    If these are all 0 they stay; if their std is below 1e-8 they become 0. Rewards outside of 0 to 1 mark items that failed: they take no part and pass
    unchanged. So a group of one and a constant group give exactly 0. Empty input gives empty output. ValueError: NaN, infinity, lengths that differ.

    THUDM, slime, `slime_plugins/rollout_buffer` (`normalize_group_data`).

    >>> slime_normalize([1.0, 0.0, -1.0, 0.5], ["a", "a", "a", "b"]).round(6)
    array([ 1., -1., -1.,  0.])
    """
    rewards_N = finite_column(rewards, name="rewards")
    groups = groups_of(group, len(rewards_N))
    valid_M = np.flatnonzero((rewards_N >= 0) & (rewards_N <= 1))
    inside = groups.of_rows(valid_M)
    from_mean = deviations(rewards_N[valid_M], inside)
    plain_M = from_mean.unscaled()
    std_P = np.sqrt(inside.sums(plain_M * plain_M) / np.maximum(inside.sizes_P, 1))
    normalised_N = rewards_N.copy()
    normalised_N[valid_M] = np.where((std_P < _EPS)[inside.index_N], 0.0, plain_M / (std_P + _EPS)[inside.index_N])
    return normalised_N
