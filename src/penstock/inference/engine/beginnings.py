"""Whole chunks that prompts begin with, laid together once for all replies to them: decoding reads them once a step, not once for each reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.inference.engine.architecture import Architecture
from penstock.inference.engine.pools import Pool, Pools, Seat
from penstock.inference.engine.prefixes import Chunk


@dataclass(slots=True, eq=False)
class _Shared:
    seat: Seat
    num_replies: int = 0


class Beginnings:
    """Those of running replies. Beginnings of one length lie together, so that a step needs one attention call for all of them."""

    def __init__(self, architecture: Architecture) -> None:
        self._pools = Pools(architecture, capacity_of=lambda length: length)
        # By the number of the last chunk, which stands for all that comes before it, too.
        self._shared: dict[int, _Shared] = {}
        self._number_of: dict[Seat, int] = {}

    def __len__(self) -> int:
        return len(self._shared)

    @property
    def pools(self) -> list[Pool]:
        """Where they are, by length."""
        return list(self._pools)

    def join(self, chunks: Sequence[Chunk]) -> Seat | None:
        """One more reply begins with `chunks`, the first of its prompt; None if there are none. Each reply must `leave`."""
        if not chunks:
            return None
        shared = self._shared.get(chunks[-1].number)
        if shared is None:
            seat = self._pools.seat([chunk.layers for chunk in chunks], sum(chunk.num_tokens for chunk in chunks))
            shared = self._shared[chunks[-1].number] = _Shared(seat)
            self._number_of[seat] = chunks[-1].number
        shared.num_replies += 1
        return shared.seat

    def leave(self, seat: Seat) -> None:
        """One reply less begins so."""
        number = self._number_of[seat]
        self._shared[number].num_replies -= 1
        if self._shared[number].num_replies == 0:
            self._pools.leave(seat)
            del self._shared[number], self._number_of[seat]

    def clear(self) -> None:
        """Forget all of them."""
        self._pools.clear()
        self._shared.clear()
        self._number_of.clear()
