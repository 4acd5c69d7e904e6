"""RLOO: each member against the mean of the others of its group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.advantages._columns import finite_column, true_or_false
from penstock.advantages._deviations import deviations, saturated
from penstock.advantages._labels import Labels, groups_of
from penstock.advantages.declaration import declares
from penstock.types import Float64Array


@declares(scale="either", ignores_shift=True)
def rloo(rewards: npt.ArrayLike, group: Labels, *, rloo_std: bool = False) -> Float64Array:
    """Leave-one-out advantages, one per row.

        A_i = r_i - (sum(r) - r_i) / (n - 1)  =  n / (n - 1) * (r_i - mean(r))

    sum and n run over the rows with the label of row i; rows of one group may stand anywhere. A group of one and a constant group give
    exactly 0. `rloo_std` divides by `std(r) + 1e-6` (ddof 1) on top, which the paper does not. The result is finite for all finite rewards: what is
    beyond the largest float64 becomes that float. Empty input gives empty output. ValueError: NaN, infinity, lengths that differ.

    Ahmadian et al. 2024, "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
    arXiv:2402.14740; the baseline is from Kool et al. 2019, "Buy 4 REINFORCE Samples, Get a Baseline for Free!".

    >>> rloo([1.0, 0.0, 0.0, 5.0], ["a", "a", "a", "b"])
    array([ 1. , -0.5, -0.5,  0. ])
    """
    true_or_false(rloo_std, name="rloo_std")
    rewards_N = finite_column(rewards, name="rewards")
    groups = groups_of(group, len(rewards_N))
    from_mean = deviations(rewards_N, groups)
    # n / (n - 1) undoes that the mean counts row i itself; a group of one has deviation 0, so its factor does not matter.
    factor_N = (groups.sizes_P / np.maximum(groups.sizes_P - 1, 1))[groups.index_N]
    advantages_N = from_mean.over_std(eps=1e-6, ddof=1) if rloo_std else from_mean.unscaled()
    return saturated(advantages_N, factor_N)
