"""Seeds that follow from other seeds and from what they are for."""

from __future__ import annotations

import xxhash


def derived_seed(seed: int, *names: str | int) -> int:
    """63 bits, a function of the seed and the names.

    >>> derived_seed(0, "step", 1) == derived_seed(0, "step", 1) != derived_seed(0, "step", 2)
    True
    """
    return xxhash.xxh3_128_intdigest(" ".join(map(str, (seed, *names))).encode()) >> 65
