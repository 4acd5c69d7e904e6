"""Splits that are disjoint by construction: the problem itself says on which side it is."""

from __future__ import annotations

from enum import StrEnum

import xxhash


class Split(StrEnum):
    """What a problem is used for."""

    TRAIN = "train"
    HELD_OUT = "held_out"
    """Never trained on."""


def split_of(key: str, *, held_out_one_in: int = 16) -> Split:
    """The side of a problem, from what makes it that problem (not from its place in a list): about one in `held_out_one_in` is held out.

    >>> [split_of(key) for key in ("50718", "4402")] == [split_of(key) for key in ("50718", "4402")]
    True
    """
    return Split.HELD_OUT if xxhash.xxh3_64_intdigest(key.encode()) % held_out_one_in == 0 else Split.TRAIN
