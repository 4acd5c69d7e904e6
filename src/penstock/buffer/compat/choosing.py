"""Which ready groups a read by the default hooks gives, and which it drops: by their rewards alone, so that nothing is opened for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.buffer.compat import reading
from penstock.buffer.compat.reading import Chosen
from penstock.buffer.compat.state import CompatState
from penstock.ledger.leases import ready_in_order
from penstock.types import GroupState

GROUPS_AT_ONCE = 1024
"""Groups that are looked at before others get a turn: a few milliseconds."""

# Asked for with every group, and an enum takes its time to name a member.
_READY = GroupState.READY


@dataclass(slots=True)
class Choice:
    """What was chosen, in order."""

    served: list[Chosen] = field(default_factory=list)
    dropped: list[tuple[Chosen, str]] = field(default_factory=list)
    """With the reason."""
    num_items: int = 0
    """Items that the groups to be served make."""


async def choose(state: CompatState, batch_size: int | None) -> Choice:
    """All groups that are valid, or the fewest, oldest first, that make `batch_size` items; and those that were refused on the way.

    Others get their turns meanwhile, and may change what was chosen: see `as_it_was`.
    """
    choice = Choice()
    for _ in _choosing(state, batch_size, choice):
        await asyncio.sleep(0)
    return choice


def chosen_at_once(state: CompatState, batch_size: int | None) -> Choice:
    """As `choose`, without giving anybody a turn."""
    choice = Choice()
    deque(_choosing(state, batch_size, choice), maxlen=0)
    return choice


def as_it_was(state: CompatState, choice: Choice) -> Choice:
    """The same without the groups that somebody has taken or added to since. Those are for a later read."""
    known = state.ledger.groups
    served = [group for group in choice.served if (now := known.get(group.id)) is not None and now.state is _READY and now.arrival is group.arrival]
    if len(served) == len(choice.served):
        return choice
    return Choice(served, choice.dropped, sum(_num_items(_verdict(state, group, {})) for group in served))


def _choosing(state: CompatState, batch_size: int | None, choice: Choice) -> Iterator[None]:
    """Gives way between pages; what a group is by then decides."""
    ids = ready_in_order(state.ledger)
    least: dict[tuple[str, int], tuple[int, int]] = {}
    for start in range(0, len(ids), GROUPS_AT_ONCE):
        if start:
            yield
        known = state.ledger.groups
        for group_id in ids[start : start + GROUPS_AT_ONCE]:
            found = known.get(group_id)
            if found is None or found.arrival is None or found.state is not _READY or found.updates:
                continue
            group = Chosen.of(found)
            verdict = _verdict(state, group, least)
            if isinstance(verdict, str):
                choice.dropped.append((group, verdict))
                continue
            choice.served.append(group)
            choice.num_items += verdict
            if batch_size is not None and choice.num_items >= batch_size:
                return


def _verdict(state: CompatState, group: Chosen, least: dict[tuple[str, int], tuple[int, int]]) -> int | str:
    """See `verdict_by_rewards`. `least` is what a valid group needs by environment and size, as far as it is known."""
    kind = (group.environment, group.size)
    if kind not in least:
        settings = state.settings(group.environment)
        least[kind] = int(group.size * settings.min_valid_group_size_ratio), settings.min_valid_items(group.size)
    arrival = group.arrival
    return reading.verdict_by_rewards(arrival.rewards, len(arrival.refused), arrival.timed_out, group.size, *least[kind])


def _num_items(verdict: int | str) -> int:
    assert not isinstance(verdict, str), "the group was found to be valid when it was chosen"
    return verdict
