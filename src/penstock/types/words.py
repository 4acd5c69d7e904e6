"""Words that are one of a few: states, kinds, purposes."""

from __future__ import annotations

from enum import StrEnum


class Word(StrEnum):
    """An enum of words.

    Its members are hashed as the text they are. An enum hashes their names, in Python, and states are part of the keys of all that is counted.
    """

    __hash__ = str.__hash__
