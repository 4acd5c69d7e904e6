"""Seeds that follow from other seeds and from what they are for."""

from __future__ import annotations

import xxhash


def derived_seed(seed: int, *names: str | int) -> int:
    """63 bits, a function of the seed and the names, the same in every version: an episode is played again by them.

    >>> derived_seed(0, "step", 1), derived_seed(0, "step", 2) == derived_seed(0, "step", 1)
    (2765621344359352529, False)
    """
    return xxhash.xxh3_128_intdigest(" ".join(map(str, (seed, *names))).encode()) >> 65
