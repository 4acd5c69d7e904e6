"""Values with a name and a way of being reduced."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidError
from penstock.metrics._catalogue import Reduction

Values = float | Iterable[float] | npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A name and one value or several. The class says how several become one; none at all emit nothing, but a sum of 0."""

    name: str
    values: Values
    reduction: ClassVar[Reduction]

    def numbers(self) -> list[float]:
        """The values as floats. Raises `InvalidError` for what is not a finite number."""
        values = self.values if isinstance(self.values, (Iterable, np.ndarray)) else (self.values,)
        numbers = [float(value) for value in np.asarray(list(values) if not isinstance(values, np.ndarray) else values, dtype=np.float64).reshape(-1)]
        for number in numbers:
            if not math.isfinite(number):
                raise InvalidError(f"metric {self.name} must be finite, got {number}")
        return numbers


class Mean(Record):
    """Reduced to the mean."""

    reduction = "mean"


class Sum(Record):
    """Reduced to the sum."""

    reduction = "sum"


class Max(Record):
    """Reduced to the largest."""

    reduction = "max"


class Min(Record):
    """Reduced to the smallest."""

    reduction = "min"


class Last(Record):
    """Reduced to the last."""

    reduction = "last"


def reduce(reduction: Reduction, numbers: list[float]) -> float | None:
    """One number for several; None for none.

    >>> [reduce(how, [1.0, 4.0, 1.0]) for how in ("mean", "sum", "max", "min", "last")]
    [2.0, 6.0, 4.0, 1.0, 1.0]
    """
    if reduction == "sum":
        return math.fsum(numbers)
    if not numbers:
        return None
    if reduction == "mean":
        return math.fsum(numbers) / len(numbers)
    return {"max": max(numbers), "min": min(numbers), "last": numbers[-1]}[reduction]
