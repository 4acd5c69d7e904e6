"""Dr. GRPO: GRPO without the two normalisers that bias it."""

from __future__ import annotations

import numpy.typing as npt

from penstock.advantages._labels import Labels
from penstock.advantages.declaration import declares
from penstock.advantages.grpo import grpo
from penstock.types import Float64Array


@declares(scale="grows", ignores_shift=True)
def dr_grpo(rewards: npt.ArrayLike, group: Labels) -> Float64Array:
    """Group-relative advantages without division by the spread, one per row.

        A_i = r_i - mean(r)

    mean runs over the rows with the label of row i; rows of one group may stand anywhere. Dividing by the group's std favours problems that are too easy
    or too hard, dividing a loss by a reply's length favours long wrong replies: the paper does neither, so train with a loss whose denominator is `fixed`.
    A group of one and a constant group give exactly 0, empty input gives empty output. ValueError: NaN, infinity, lengths that differ.

    Liu et al. 2025, "Understanding R1-Zero-Like Training: A Critical Perspective", arXiv:2503.20783, section 3.

    >>> dr_grpo([1.0, 0.0, 0.0, 1.0], ["a", "a", "a", "a"])
    array([ 0.5, -0.5, -0.5,  0.5])
    """
    return grpo(rewards, group, norm="mean_norm")
