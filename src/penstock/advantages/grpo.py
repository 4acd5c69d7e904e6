"""GRPO: each member against the mean of its group, in units of the group's spread."""

from __future__ import annotations

import numpy.typing as npt

from penstock.advantages._columns import finite_column, not_negative, one_of, whole_number
from penstock.advantages._deviations import NORMS, deviations
from penstock.advantages._labels import Labels, groups_of
from penstock.advantages.declaration import declares
from penstock.types import Float64Array


@declares(scale="either", ignores_shift=True)
def grpo(rewards: npt.ArrayLike, group: Labels, *, norm: str = "mean_std_norm", eps: float = 1e-6, ddof: int = 1) -> Float64Array:
    """Group-relative advantages, one per row.

        mean_std_norm    A_i = (r_i - mean(r)) / (std(r) + eps)      std with `ddof` (1: sample, 0: population)
        mean_norm        A_i =  r_i - mean(r)

    mean and std run over the rows with the label of row i; rows of one group may stand anywhere. A group of one, a constant group and, in
    `mean_std_norm`, one with no more than `ddof` rows give exactly 0. The result is finite for all finite rewards: a `mean_norm` advantage
    beyond the largest float64 becomes that float. Empty input gives empty output. ValueError: NaN, infinity, lengths that differ, an unknown norm, an
    impossible eps or ddof.

    Shao et al. 2024, "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", arXiv:2402.03300, section 4.1.

    >>> grpo([1.0, 0.0, 3.0, 0.0, 1.0], ["a", "a", "b", "a", "a"], norm="mean_norm")
    array([ 0.5, -0.5,  0. , -0.5,  0.5])
    >>> grpo([1.0, 0.0], [7, 7], eps=0.0).round(4)
    array([ 0.7071, -0.7071])
    """
    one_of(norm, NORMS, name="norm")
    not_negative(eps, name="eps")
    whole_number(ddof, 0, name="ddof")
    rewards_N = finite_column(rewards, name="rewards")
    from_mean = deviations(rewards_N, groups_of(group, len(rewards_N)))
    return from_mean.normalised(norm, eps=eps, ddof=ddof)
