"""Distance of each row from the mean of its group, exact where it must be and finite for every finite input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.advantages._labels import Groups
from penstock.types import Float64Array

LARGEST = float(np.finfo(np.float64).max)
NORMS = ("mean_std_norm", "mean_norm")


def saturated(values_N: Float64Array, factor: Float64Array | float = 1.0) -> Float64Array:
    """`values * factor` of finite values, where what is beyond the largest float64 becomes that float."""
    if isinstance(factor, float) and factor == 1.0:
        return values_N
    with np.errstate(over="ignore", under="ignore"):
        product_N: Float64Array = values_N * factor
    return np.clip(product_N, -LARGEST, LARGEST, out=product_N)


def saturated_sum(first_N: Float64Array, second_N: Float64Array) -> Float64Array:
    """The sum of finite columns, where what is beyond the largest float64 becomes that float."""
    with np.errstate(over="ignore"):
        sum_N: Float64Array = first_N + second_N
    return np.clip(sum_N, -LARGEST, LARGEST, out=sum_N)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Deviations:
    """`value - mean of its group`, as `scaled_N * unit_P[group]` so that no sum or square can overflow or vanish."""

    groups: Groups
    scaled_N: Float64Array
    """Between -4 and 4. Exactly 0 in constant and single-member groups."""
    unit_P: Float64Array
    """Powers of two, so that scaling rounds nothing."""

    def unscaled(self) -> Float64Array:
        """The deviations themselves. One that is beyond the largest float64 becomes that float."""
        return saturated(self.scaled_N, self.unit_P[self.groups.index_N])

    def normalised(self, norm: str, *, eps: float = 1e-6, ddof: int = 1) -> Float64Array:
        """`over_std` for `mean_std_norm`, the deviations themselves for `mean_norm`."""
        return self.over_std(eps=eps, ddof=ddof) if norm == "mean_std_norm" else self.unscaled()

    def over_std(self, *, eps: float, ddof: int) -> Float64Array:
        """`deviation / (std + eps)`; 0 in groups without spread, or too small to have one (size <= ddof)."""
        sizes_P = self.groups.sizes_P
        squares_P = self.groups.sums(self.scaled_N * self.scaled_N)
        std_P = np.sqrt(squares_P / np.maximum(sizes_P - ddof, 1))
        with np.errstate(over="ignore", under="ignore"):
            spread_P = std_P + eps / self.unit_P
        inverse_P = np.divide(1.0, spread_P, out=np.zeros_like(spread_P), where=(std_P > 0) & (sizes_P > ddof))
        return self.scaled_N * inverse_P[self.groups.index_N]


def deviations(values_N: Float64Array, groups: Groups) -> Deviations:
    """Deviations of finite values from their group's mean.

    >>> from penstock.advantages._labels import groups_of
    >>> deviations(np.array([1.0, 0.0, 5.0]), groups_of([0, 0, 1], 3)).unscaled()
    array([ 0.5, -0.5,  0. ])
    """
    index_N = groups.index_N
    # Between 2**-1021 and 2**1023 both the unit and its inverse are floats, and the largest float64 stays below 2 units.
    spare_N = np.abs(values_N)  # and reused below: on large columns fresh memory costs more than the arithmetic
    exponent_P = np.clip(np.frexp(groups.largest(spare_N))[1] - 1, -1021, 1023)
    unit_P: Float64Array = np.ldexp(1.0, exponent_P)
    scaled_N: Float64Array = (1.0 / unit_P)[index_N]
    with np.errstate(under="ignore"):
        scaled_N *= values_N
    # The mean of n equal floats need not be that float. Measured from one of its own members, a constant group is exactly 0.
    scaled_N -= np.take(groups.first(scaled_N), index_N, out=spare_N, mode="clip")
    scaled_N -= np.take(groups.sums(scaled_N) / np.maximum(groups.sizes_P, 1), index_N, out=spare_N, mode="clip")
    return Deviations(groups=groups, scaled_N=scaled_N, unit_P=unit_P)
