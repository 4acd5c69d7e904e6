"""Reads of the compatible routes: which groups are given, for good, and the record that lets the same read be served again."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

from penstock.buffer.compat import reading
from penstock.buffer.compat.choosing import Choice, as_it_was, choose, chosen_at_once
from penstock.buffer.compat.hooks import HookFault, Hooks, HookSettings
from penstock.buffer.compat.progress import Progress
from penstock.buffer.compat.reading import Chosen, Served, Unfinished, paged
from penstock.buffer.compat.state import READER, CompatState
from penstock.buffer.core import Pending
from penstock.errors import UnknownError
from penstock.ledger.arrivals import Reading, finished
from penstock.ledger.leases import leasable
from penstock.types import GroupRecord, GroupState, LeaseRecord, LeaseRequest

IN_MEMORY_BYTES = 32 * 1024 * 1024
"""What a generator's own functions have made of a read goes to a file above this."""
DROPPED_AT_ONCE = 256
"""Groups that one decision drops before others get a turn."""

# Asked for with every group of a read, and an enum takes its time to name a member.
_OPEN = GroupState.OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a read gives."""

    read_id: str | None
    """None if nothing was taken."""
    num_items: int
    """Items in `items`; of a read that was short, those that there would have been."""
    meta_info: dict[str, Any]
    items: AsyncIterator[list[bytes]] | None
    """Some groups at a time, to be used up once: of each its encoded items with commas between. None if there is nothing to give."""
    damaged: list[str] = field(default_factory=list)
    """Groups that were found damaged on the way and left out; complete when `items` is used up."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a group's encoded items lie in the file of `_Made`."""

    group: Chosen
    start: int
    lengths: tuple[int, ...]


@dataclass(slots=True)
class _Made:
    """What hooks have made of groups: encoded items one after the other."""

    file: IO[bytes]
    places: list[_Place] = field(default_factory=list)
    dropped: list[tuple[Chosen, str]] = field(default_factory=list)
    num_items: int = 0

    def add(self, group: Chosen, items: Sequence[bytes]) -> None:
        """Keep the items of a group."""
        self.places.append(_Place(group, self.file.tell(), tuple(map(len, items))))
        self.file.writelines(items)
        self.num_items += len(items)

    async def items(self, places: Sequence[_Place]) -> AsyncIterator[list[bytes]]:
        """What was kept of some groups."""
        with self.file:
            for page in paged(places):
                yield [self._items_of(place) for place in page]

    def _items_of(self, place: _Place) -> bytes:
        self.file.seek(place.start)
        return b",".join([self.file.read(length) for length in place.lengths])


class Reader:
    """One read at a time; writers go on meanwhile."""

    def __init__(self, state: CompatState, hooks: Callable[[str], Hooks | None]) -> None:
        self._state = state
        self._hooks = hooks
        self._turn = asyncio.Lock()

    async def read(self, batch_size: int | None) -> Batch:
        """Take the groups that are valid, for good: all of them, or the fewest, oldest first, that make `batch_size` items.

        Groups that the hooks refuse are dropped on the way, also when there is too little.
        """
        async with self._turn:
            state = self._state
            state.look()
            await state.service.settled()
            if not state.is_open:
                return Batch(read_id=None, num_items=0, meta_info=_meta(state.progress), items=None)
            hooks = self._own_hooks({*state.ledger.ready, *state.ledger.trays.by_environment, state.task_type})
            if hooks:
                return await self._read_through(hooks, batch_size)
            return await self._read_by_rewards(batch_size)

    async def read_again(self, read_id: str) -> Batch:
        """What an earlier read gave. Raises `UnknownError` if there was none, `RetiredError` if retention gave up all of it."""
        state = self._state
        store = state.service.buffer.store
        # Beside the event loop: it may name a hundred thousand groups. It is in the store, since a read is settled when it is made.
        lease = await asyncio.to_thread(store.lease, state.config.run, read_id) if state.is_open else None
        if lease is None or lease.consumer != READER:
            raise UnknownError(f"no read {read_id}")
        await state.service.settled()
        groups, damaged = await asyncio.to_thread(reading.groups_of, store, lease)
        items = self._made_again(groups, damaged) if lease.facts.get("hooks") == "generator" else self._served(groups, damaged)
        meta = {"read_id": read_id, "served_again": True, "finished_groups": []}
        return Batch(read_id=read_id, num_items=int(lease.facts["num_items"]), meta_info=meta, items=items, damaged=damaged)

    async def peek(self, batch_size: int) -> Batch:
        """The oldest groups that the default hooks would serve, without taking them."""
        state = self._state
        state.look()
        await state.service.settled()
        choice = await choose(state, batch_size) if state.is_open else Choice()
        damaged: list[str] = []
        items = self._served(choice.served, damaged) if choice.served else None
        return Batch(read_id=None, num_items=choice.num_items, meta_info=_meta(state.progress), items=items, damaged=damaged)

    def _own_hooks(self, task_types: Iterable[str]) -> dict[str, Hooks]:
        """Of those task types whose generators bring functions."""
        return {name: hooks for name in task_types if (hooks := self._hooks(name)) is not None}

    # By the default hooks: nothing is opened before it is served

    async def _read_by_rewards(self, batch_size: int | None) -> Batch:
        choice = await choose(self._state, batch_size)
        dropped = await self._dropped(choice.dropped)
        served = as_it_was(self._state, choice)
        if batch_size is not None and served.num_items < min(batch_size, choice.num_items):
            # There may be others in the place of those that somebody else has taken.
            served = chosen_at_once(self._state, batch_size)
            dropped |= {group.id: reason for group, reason in served.dropped}
        meta = _meta(self._state.progress)
        if not served.served or (batch_size is not None and served.num_items < batch_size):
            return await self._short(dropped, served.num_items, meta)
        damaged: list[str] = []
        items = self._served(served.served, damaged, take=True)
        return await self._taken(served.served, dropped, served.num_items, meta, "default", items, damaged)

    async def _served(self, groups: Sequence[Chosen], damaged: list[str], *, take: bool = False) -> AsyncIterator[list[bytes]]:
        for page in paged(groups):
            found = await self._opened(page, take=take)
            damaged += [group.id for group, bodies in zip(page, found, strict=True) if bodies is None]
            yield [reading.serve_by_rewards(group, bodies) for group, bodies in zip(page, found, strict=True) if bodies is not None]
            # Small items that are in memory are sent without ever waiting for anything.
            await asyncio.sleep(0)

    async def _opened(self, groups: Sequence[Chosen], *, take: bool = False) -> list[Sequence[bytes] | None]:
        """The items of some groups; with `take` nobody will ask for them again."""
        state = self._state
        look = state.bodies.take if take else state.bodies.get
        return await reading.opened(state.service.buffer.store, state.config.run, groups, [look(group.id) for group in groups])

    # Through functions that a generator brings

    async def _read_through(self, hooks: Mapping[str, Hooks], batch_size: int | None) -> Batch:
        progress, state = self._state.progress, self._state
        meta = _meta(progress)
        own = hooks.get(state.task_type)
        if own is not None and "get_group_data_meta_info" in own.overridden:
            known = state.ledger.readers.get(READER)
            told = await own.get_group_data_meta_info(reading.raw_groups(state.service.buffer.store, state.config.run, known.read_at if known else -1.0))
            meta |= {"hook_error": f"{told.hook}: {told.message}"} if isinstance(told, HookFault) else told
        made = await self._make(hooks, self._candidates(hooks), batch_size)
        dropped = await self._dropped(made.dropped)
        # While others computed, a lease may have taken a group, or another item may have come to an open one.
        places = [place for place in made.places if self._is_as_it_was(place.group)]
        num_items = sum(len(place.lengths) for place in places)
        if not places or (batch_size is not None and num_items < batch_size):
            made.file.close()
            return await self._short(dropped, num_items, meta)
        for place in places:
            self._state.bodies.take(place.group.id)
        return await self._taken([place.group for place in places], dropped, num_items, meta, "generator", made.items(places), [])

    def _candidates(self, hooks: Mapping[str, Hooks]) -> Iterator[Chosen]:
        """Ready groups, then the open ones of task types whose own function says what is finished."""
        for group in list(leasable(self._state.ledger, LeaseRequest())):
            if group.arrival is not None:
                yield Chosen.of(group)._replace(unfinished=self._when_unfinished(group))
        for name, trays in list(self._state.ledger.trays.by_environment.items()):
            if name in hooks and "is_valid_group" in hooks[name].overridden:
                yield from [Chosen.of(self._as_if_finished(self._state.ledger.groups[group_id])) for group_id in trays]

    def _when_unfinished(self, group: GroupRecord) -> Unfinished | str | None:
        """What becomes of a group that has enough items, if the generator's own function waits for more: the clock ends that, too."""
        rules = self._state.settings(group.environment).rules
        if group.arrival is None or group.ready_at is None or group.ready_at + rules.group_timeout_seconds > self._state.service.now():
            return Unfinished()
        return "timeout" if len(group.arrival.rewards) / group.size < rules.min_timeout_group_size_ratio else None

    def _as_if_finished(self, group: GroupRecord) -> GroupRecord:
        return finished(self._state.ledger, group, 0.0, ready_order=0)

    def _is_as_it_was(self, group: Chosen) -> bool:
        now = self._state.ledger.groups.get(group.id)
        if now is None or now.state not in (GroupState.OPEN, GroupState.READY):
            return False
        found = now if now.state is GroupState.READY else self._as_if_finished(now)
        return found.arrival is group.arrival or (found.digest, found.arrival) == (group.digest, group.arrival)

    async def _make(self, hooks: Mapping[str, Hooks], groups: Iterable[Chosen], batch_size: int | None) -> _Made:
        made = _Made(tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES))  # noqa: SIM115 - closed by whoever uses it up
        by_kind = (list(page) for _, page in itertools.groupby(groups, key=lambda group: (group.environment, group.size)))
        for page in by_kind:
            for some in paged(page):
                await self._make_some(hooks.get(some[0].environment), some, made)
                if batch_size is not None and made.num_items >= batch_size:
                    return _fewest(made, batch_size)
        return made

    async def _make_some(self, hooks: Hooks | None, groups: Sequence[Chosen], made: _Made) -> None:
        """All of one environment and size."""
        opened: list[tuple[Chosen, list[dict[str, Any]]]] = []
        for group, bodies in zip(groups, await self._opened(groups), strict=True):
            if bodies is None:
                made.dropped.append((group, "damaged"))
            else:
                opened.append((group, [reading.parsed(body) for body in bodies]))
        settings = self._state.settings(groups[0].environment)
        size = groups[0].size
        told = HookSettings(task_type=groups[0].environment, group_size=size, min_valid_group_size=int(size * settings.min_valid_group_size_ratio))
        verdicts = await reading.through_hooks(hooks, opened, told, settings.min_valid_items(size))
        for (group, _), verdict in zip(opened, verdicts, strict=True):
            if isinstance(verdict, Served):
                made.add(group, verdict.items)
            elif isinstance(verdict, str):
                made.dropped.append((group, verdict))

    async def _made_again(self, groups: Sequence[Chosen], damaged: list[str]) -> AsyncIterator[list[bytes]]:
        # Whether they are valid was settled when they were read: as for groups that timed out, nobody is asked again.
        settled = [group._replace(arrival=replace(group.arrival, timed_out=True)) for group in groups]
        made = await self._make(self._own_hooks({group.environment for group in groups}), settled, None)
        damaged += [group.id for group, _ in made.dropped]
        async for items in made.items(made.places):
            yield items

    # The end of every read

    async def _dropped(self, refused: Sequence[tuple[Chosen, str]]) -> dict[str, str]:
        """Drop groups, all but the last of them, which are left to the decision that ends the read: there may be very many, and each is written anew."""
        for start in range(0, len(refused) - DROPPED_AT_ONCE, DROPPED_AT_ONCE):
            self._close(Reading(read_id="", dropped=self._reasons(refused[start : start + DROPPED_AT_ONCE])))
            await asyncio.sleep(0)
        return self._reasons(refused[-(len(refused) % DROPPED_AT_ONCE or DROPPED_AT_ONCE) :])

    def _reasons(self, refused: Sequence[tuple[Chosen, str]]) -> dict[str, str]:
        """By id; without those that somebody has taken or added to meanwhile."""
        return {group.id: reason for group, reason in refused if self._is_as_it_was(group)}

    async def _short(self, dropped: Mapping[str, str], num_items: int, meta: dict[str, Any]) -> Batch:
        """Nothing is taken; what was refused is dropped all the same, and told now and until a read gives something."""
        if dropped:
            pending = self._close(Reading(read_id="", dropped=dropped))
            meta |= {"dropped": dict(self._state.progress.dropped)}
            await self._state.service.durable(pending)
        return Batch(read_id=None, num_items=num_items, meta_info=meta, items=None)

    def _close(self, made: Reading) -> Pending[LeaseRecord | None]:
        """Decide a read. Groups that were open until now are finished with it."""
        state = self._state
        known = state.ledger.groups
        growing = [group for group_id in (*made.served, *made.dropped) if (group := known[group_id]).state is _OPEN]
        pending = state.service.decided(lambda buffer: buffer.read(state.config.run, made, READER))
        state.progress.finished += [group.arrival.instance for group in growing if group.arrival is not None]
        state.progress.dropped.update(made.dropped.values())
        for group_id in made.dropped:
            state.bodies.take(group_id)
        return pending

    async def _taken(
        self,
        groups: Sequence[Chosen],
        dropped: Mapping[str, str],
        num_items: int,
        meta: dict[str, Any],
        hooks: str,
        items: AsyncIterator[list[bytes]],
        damaged: list[str],
    ) -> Batch:
        """Make the read durable; only then is anything of it told."""
        read_id = f"read-{secrets.token_hex(12)}"
        made = Reading(
            read_id=read_id,
            served=[group.id for group in groups],
            dropped=dropped,
            num_items=num_items,
            facts={"num_items": str(num_items), "hooks": hooks},
        )
        pending = self._close(made)
        told, self._state.progress = self._state.progress, Progress()
        meta |= {"finished_groups": told.finished, "dropped": dict(told.dropped), "read_id": read_id}
        await self._state.service.durable(pending)
        return Batch(read_id=read_id, num_items=num_items, meta_info=meta, items=items, damaged=damaged)


def _fewest(made: _Made, batch_size: int) -> _Made:
    """The same without the groups beyond those that reach `batch_size`; they stay where they are."""
    num_items = 0
    for place, found in enumerate(made.places):
        num_items += len(found.lengths)
        if num_items >= batch_size:
            return replace(made, places=made.places[: place + 1], num_items=num_items)
    return made


def _meta(progress: Progress) -> dict[str, Any]:
    return progress.meta.meta_info() | {"finished_groups": [], "dropped": dict(progress.dropped)}
