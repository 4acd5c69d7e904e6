"""Seeds that follow from other seeds and from what they are for."""

from __future__ import annotations

from penstock.wire import digest


def derived_seed(seed: int, *names: str | int) -> int:
    """63 bits, a function of the seed and the names.

    >>> derived_seed(0, "step", 1) == derived_seed(0, "step", 1) != derived_seed(0, "step", 2)
    True
    """
    return int(digest(" ".join([str(seed), *map(str, names)]).encode())[:16], 16) >> 1
