"""MaxRL: towards the likelihood of success instead of its expectation, so that hard problems count for more."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.advantages._columns import check_bounds, finite_column
from penstock.advantages._deviations import deviations
from penstock.advantages._labels import Labels, groups_of
from penstock.advantages.declaration import declares
from penstock.types import Float64Array


@declares(least_reward=0.0, scale="stays")
def maxrl(rewards: npt.ArrayLike, group: Labels) -> Float64Array:
    """Advantages in units of the group's mean reward, one per row.

        A_i = (r_i - mean(r)) / mean(r)

    mean runs over the rows with the label of row i. With rewards of 0 and 1 the gradient is the mean over the successes, unbiased for a likelihood that is
    expanded to as many orders as the group has members. A group without any success, a constant group and a group of one give exactly 0. Finite for all
    rewards of 0 or more, and at most one less than the size of the group. Empty input gives empty output. ValueError: NaN, infinity, rewards below 0,
    lengths that differ.

    Tajwar et al. 2026, "Maximum Likelihood Reinforcement Learning", arXiv:2602.02710.

    >>> maxrl([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], ["hard", "hard", "hard", "hard", "none", "none"])
    array([ 3., -1., -1., -1.,  0.,  0.])
    """
    rewards_N = finite_column(rewards, name="rewards")
    check_bounds(rewards_N, name="rewards", least=0)
    groups = groups_of(group, len(rewards_N))
    from_mean = deviations(rewards_N, groups)
    # In the same units as the deviations; unlike them, the mean itself is meant here.
    mean_P = groups.sums(rewards_N / from_mean.unit_P[groups.index_N]) / np.maximum(groups.sizes_P, 1)
    inverse_P = np.divide(1.0, mean_P, out=np.zeros_like(mean_P), where=mean_P > 0)
    return from_mean.scaled_N * inverse_P[groups.index_N]
