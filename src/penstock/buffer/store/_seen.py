"""Whether a key may be in the store, asked without asking the store.

Nearly every write comes with a uid that nobody has seen before. To find that out from the database costs a query, and every query makes the thread
that asks wait for its turn among the others. A few bits for each key answer nearly all of them; a key that may be there is looked up as ever.
"""

from __future__ import annotations

_FIRST_BITS = 1 << 22
_BITS_PER_KEY = 16
"""With three probes about one unknown key in two hundred is looked up in vain."""


class Seen:
    """A set of keys that can be wrong in one way only: it may take an unknown key for a known one. Grows by doubling; nothing is ever removed."""

    def __init__(self) -> None:
        self._filters = [bytearray(_FIRST_BITS // 8)]
        self._room = _FIRST_BITS // _BITS_PER_KEY

    def add(self, run: str, key: str) -> None:
        """From now on `may_have` says yes to this key."""
        if self._room == 0:
            num_bytes = 2 * len(self._filters[-1])
            self._filters.append(bytearray(num_bytes))
            self._room = 8 * num_bytes // _BITS_PER_KEY
        self._room -= 1
        bits = self._filters[-1]
        for place in _places(_number(run, key), len(bits)):
            bits[place >> 3] |= 1 << (place & 7)

    def may_have(self, run: str, key: str) -> bool:
        """False only for a key that was never added."""
        number = _number(run, key)
        for bits in self._filters:
            # The first alone nearly always tells.
            first = number & 8 * len(bits) - 1
            if bits[first >> 3] >> (first & 7) & 1 and all(bits[place >> 3] >> (place & 7) & 1 for place in _places(number, len(bits))):
                return True
        return False


def _number(run: str, key: str) -> int:
    # Texts keep their hash, so this is cheap; and it is salted anew in every process, so nobody can choose keys that look alike.
    return hash((run, key))


def _places(number: int, num_bytes: int) -> tuple[int, int, int]:
    mask = 8 * num_bytes - 1
    first, second = number & mask, number >> 32
    return first, second & mask, first + 2 * second & mask
