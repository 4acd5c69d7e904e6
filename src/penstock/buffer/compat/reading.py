"""What a read serves: which groups, and how their items look. The rules are pure; bytes are opened last, a few groups at a time."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec

from penstock.buffer.compat import defaults
from penstock.buffer.compat.hooks import HookFault, HookName, Hooks, HookSettings, Item, ItemGroup
from penstock.buffer.compat.splicing import spliced
from penstock.buffer.store import Store
from penstock.buffer.store.protocol import StoredBody
from penstock.errors import CorruptError, RetiredError, UnknownError
from penstock.types import Arrival, GroupRecord, LeaseRecord, RolloutRecord
from penstock.wire import digest

T = TypeVar("T")

GROUPS_AT_ONCE = 32
"""Groups whose bytes are in memory at once."""
ITEMS_AT_ONCE = 256
"""Items that are opened at once for a generator's own statistics."""

_value = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode


def paged(groups: Sequence[T]) -> Iterator[Sequence[T]]:
    """`GROUPS_AT_ONCE` at a time."""
    return (groups[start : start + GROUPS_AT_ONCE] for start in range(0, len(groups), GROUPS_AT_ONCE))


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A group that a generator's own function does not call finished: it stays."""


class Chosen(NamedTuple):
    """A group that is looked at by a read."""

    id: str
    environment: str
    size: int
    digest: str
    arrival: Arrival
    unfinished: Unfinished | str | None = Unfinished()
    """What becomes of it if a generator's own function does not call it finished: it stays, is dropped for a reason, or (None) is used all the same."""

    @classmethod
    def of(cls, group: GroupRecord) -> Chosen:
        """The part of the record that a read needs."""
        assert group.arrival is not None
        return cls(group.id, group.environment, group.size, group.digest, group.arrival)


@dataclass(frozen=True, slots=True)
class Served:
    """A group's items as a reader gets them, encoded."""

    items: list[bytes]


Verdict = Served | Unfinished | str
"""What becomes of a group; a text says why it is dropped."""


@lru_cache(maxsize=4096)
def verdict_by_rewards(
    rewards: tuple[float | None, ...], num_refused: int, timed_out: bool, group_size: int, min_valid_group_size: int, min_valid_items: int
) -> int | str:
    """How many items the default hooks make of a group; or why they drop it. Remembered: groups of the same rewards are alike."""
    reason = defaults.ask(rewards, group_size, min_valid_group_size, timed_out=timed_out)
    return defaults.num_placed(len(rewards) - num_refused, group_size, min_valid_items) if reason is None else reason


def groups_of(store: Store, lease: LeaseRecord) -> tuple[list[Chosen], list[str]]:
    """The groups that an earlier read took, and the ids of those whose record is damaged. Raises `RetiredError` if retention gave up the bytes of all."""
    found: list[GroupRecord] = []
    damaged: list[str] = []
    for planned in lease.groups:
        try:
            group = store.group(lease.run, planned.id)
        except CorruptError:
            damaged.append(planned.id)
            continue
        if group is not None and group.arrival is not None:
            found.append(group)
    retired = {file.name for file in store.archive_files(lease.run) if file.retired_at is not None}
    if found and all(group.archive in retired for group in found):
        raise RetiredError(f"the items of read {lease.lease} were retired with their archive files")
    return [Chosen.of(group) for group in found], damaged


async def opened(store: Store, run: str, groups: Sequence[Chosen], cached: Sequence[Sequence[bytes]]) -> list[Sequence[bytes] | None]:
    """The bytes of each group's items by member; None if they are not all as they were written. `cached` are those that are known already."""
    missing = [group for group, bodies in zip(groups, cached, strict=True) if len(bodies) < len(group.arrival.rewards)]
    stored = await asyncio.to_thread(_stored, store, run, missing) if missing else {}
    # Cut last: an item may have come to a group that is looked at and not taken.
    return [stored[group.id] if group.id in stored else bodies[: len(group.arrival.rewards)] for group, bodies in zip(groups, cached, strict=True)]


def _stored(store: Store, run: str, groups: Sequence[Chosen]) -> dict[str, Sequence[bytes] | None]:
    found = store.bodies(run, [group.id for group in groups])
    return {group.id: _as_written(store, run, group, found[group.id][: len(group.arrival.rewards)]) for group in groups}


def _as_written(store: Store, run: str, group: Chosen, found: Sequence[StoredBody]) -> list[bytes] | None:
    # Rows that were written again stand in another order than they arrived.
    if _digest(group, found) != group.digest and _digest(group, found := _by_member(store, run, group)) != group.digest:
        return None
    return [stored.body for stored in found]


def serve_by_rewards(group: Chosen, bodies: Sequence[bytes]) -> bytes:
    """The items of a group as the default hooks shape them, encoded, with commas between."""
    return spliced(group.arrival.rewards, group.arrival.refused, group.size, bodies)


async def through_hooks(hooks: Hooks | None, groups: Sequence[tuple[Chosen, list[Item]]], settings: HookSettings, min_valid_items: int) -> list[Verdict]:
    """What becomes of each group when generators bring functions of their own; None: that of this task type does not."""
    verdicts: dict[str, Verdict] = {}
    valid = await _valid(hooks, groups, settings, verdicts)
    kept = await _kept(hooks, valid, settings, min_valid_items, verdicts)
    normalized = await _normalized(hooks, kept, verdicts)
    for group, (_, items) in await _padded(hooks, normalized, settings, verdicts):
        verdicts[group.id] = _encoded(hooks, items)
    return [verdicts[group.id] for group, _ in groups]


def parsed(body: bytes) -> Item:
    """An item as hooks see it: a boolean reward is 0 or 1."""
    item: Item = _value.decode(body)
    if isinstance(item.get("reward"), bool):
        item["reward"] = int(item["reward"])
    return item


async def raw_groups(store: Store, run: str, since: float) -> AsyncIterator[ItemGroup]:
    """Everything that was written since a moment, for a generator's own statistics; but not what is damaged, or gone from the archive."""
    rollouts = store.rollouts_since(run, since)
    while page := await asyncio.to_thread(_items_at_once, rollouts):
        for group in await asyncio.to_thread(_raw_items, store, run, page):
            yield group


def _items_at_once(rollouts: Iterator[RolloutRecord]) -> list[RolloutRecord]:
    return list(islice((rollout for rollout in rollouts if rollout.form == "item"), ITEMS_AT_ONCE))


def _raw_items(store: Store, run: str, rollouts: Sequence[RolloutRecord]) -> list[ItemGroup]:
    groups: list[ItemGroup] = []
    for rollout in rollouts:
        with contextlib.suppress(CorruptError, RetiredError, UnknownError):
            item = parsed(store.payload(run, rollout.uid).body)
            groups.append((str(item["instance_id"]), [item]))
    return groups


Working = tuple[Chosen, ItemGroup]


async def _valid(hooks: Hooks | None, groups: Sequence[tuple[Chosen, list[Item]]], settings: HookSettings, verdicts: dict[str, Verdict]) -> list[Working]:
    asked = [(group, (group.arrival.instance, items)) for group, items in groups]
    if hooks is None or "is_valid_group" not in hooks.overridden:
        for group, _ in asked:
            reason = defaults.ask(group.arrival.rewards, group.size, settings.min_valid_group_size, timed_out=group.arrival.timed_out)
            if reason is not None:
                verdicts[group.id] = reason
        return [work for work in asked if work[0].id not in verdicts]
    open_to_question = [work for work in asked if not work[0].arrival.timed_out]
    answers = await hooks.is_valid_group([data for _, data in open_to_question], settings)
    for (group, _), answer in zip(open_to_question, answers, strict=True):
        if isinstance(answer, HookFault):
            verdicts[group.id] = answer.reason
        elif answer == (True, False):
            verdicts[group.id] = HookFault(hook="is_valid_group", message="valid but not finished").reason
        elif not answer[1]:
            if group.unfinished is not None:
                verdicts[group.id] = group.unfinished
        elif not answer[0]:
            verdicts[group.id] = "not_valid"
    return [work for work in asked if work[0].id not in verdicts]


async def _kept(hooks: Hooks | None, works: list[Working], settings: HookSettings, min_valid_items: int, verdicts: dict[str, Verdict]) -> list[Working]:
    if hooks is not None and "filter_item" in hooks.overridden:
        answers = await hooks.filter_item([data for _, data in works], settings)
    else:
        answers = [[defaults.default_filter_item(item, settings.task_type) for item in data[1]] for _, data in works]
    kept: list[Working] = []
    for (group, (instance, items)), answer in zip(works, answers, strict=True):
        if isinstance(answer, HookFault):
            verdicts[group.id] = answer.reason
        elif len(answer) != len(items):
            verdicts[group.id] = HookFault(hook="filter_item", message="an answer for each item is needed").reason
        elif sum(map(bool, answer)) < min_valid_items:
            verdicts[group.id] = "too_few_valid"
        else:
            kept.append((group, (instance, [item for item, keep in zip(items, answer, strict=True) if keep])))
    return kept


async def _normalized(hooks: Hooks | None, works: list[Working], verdicts: dict[str, Verdict]) -> list[Working]:
    if hooks is None or "normalize_group_data" not in hooks.overridden:
        return [(group, defaults.default_normalize_group_data(data)) for group, data in works]
    return _went_well(works, await hooks.normalize_group_data([data for _, data in works]), verdicts)


async def _padded(hooks: Hooks | None, works: list[Working], settings: HookSettings, verdicts: dict[str, Verdict]) -> list[Working]:
    if hooks is None or "pad_group_data" not in hooks.overridden:
        padded: list[Working] = []
        for group, data in works:
            try:
                padded.append((group, defaults.default_pad_group_data(data, settings.group_size)))
            except ValueError:
                verdicts[group.id] = "too_few_to_pad"
        return padded
    done = _went_well(works, await hooks.pad_group_data([data for _, data in works], settings), verdicts)
    for group, (_, items) in done:
        if not items or len(items) % settings.group_size:
            verdicts[group.id] = HookFault(hook="pad_group_data", message=f"{len(items)} is no multiple of {settings.group_size}").reason
    return [work for work in done if work[0].id not in verdicts]


def _went_well(works: list[Working], answers: Iterable[ItemGroup | HookFault], verdicts: dict[str, Verdict]) -> list[Working]:
    done: list[Working] = []
    for (group, _), answer in zip(works, answers, strict=True):
        if isinstance(answer, HookFault):
            verdicts[group.id] = answer.reason
        else:
            done.append((group, answer))
    return done


def _encoded(hooks: Hooks | None, items: list[Item]) -> Verdict:
    """The items as they are sent. A reward that is no number must not reach training, whoever made it."""
    last: HookName = "pad_group_data" if hooks is not None and "pad_group_data" in hooks.overridden else "normalize_group_data"
    for item in items:
        reward = item.get("reward")
        if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward)):
            return HookFault(hook=last, message=f"reward {reward!r}").reason
    return Served([_encode(item) for item in items])


def _digest(group: Chosen, found: Sequence[StoredBody]) -> str:
    """What the group's digest would be if these were its members."""
    rewards = group.arrival.rewards
    if len(found) != len(rewards):
        return ""
    usable = [f"{member} {stored.uid} {stored.digest}" for member, stored in enumerate(found) if (reward := rewards[member]) is not None and reward >= 0]
    return digest("\n".join(usable).encode())


def _by_member(store: Store, run: str, group: Chosen) -> list[StoredBody]:
    try:
        rollouts = store.rollouts(run, group.id)[: len(group.arrival.rewards)]
        return [StoredBody(rollout.uid, rollout.digest, store.payload(run, rollout.uid).body) for rollout in rollouts]
    except (CorruptError, RetiredError, UnknownError):
        return []
