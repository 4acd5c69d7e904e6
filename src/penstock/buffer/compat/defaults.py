"""What the five hooks do where a generator brings none of its own: pure functions with the original arguments, and the same by rewards alone.

`ask` and `shape` give for a group's rewards what the functions give for its items; a read uses them, because it then need not open the items to
know what it will serve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.buffer.compat.hooks import Item, ItemGroup

FLAT = 1e-8
"""Rewards whose standard deviation is below it are equal."""


def default_get_group_data_meta_info(temp_data: Mapping[str, Sequence[Item]]) -> dict[str, Any]:
    """Statistics over raw items by instance. Items without a reward count as samples and in nothing else.

    >>> default_get_group_data_meta_info({"a": [{"reward": 1.0}, {"reward": 0.0}], "b": [{"reward": None}]})["avg_reward"]
    0.5
    """
    running = RunningMeta()
    for instance_id, items in temp_data.items():
        for item in items:
            running.add(instance_id, number(item.get("reward")))
    return running.meta_info()


def default_is_valid_group(group: ItemGroup, min_valid_group_size: int, task_type: str) -> tuple[bool, bool]:
    """`(valid, finished)`: enough items, and rewards that are not all equal.

    >>> default_is_valid_group(("a", [{"reward": 1.0}, {"reward": 1.0}]), 2, "math")
    (False, True)
    """
    finished = len(group[1]) >= min_valid_group_size
    return finished and not is_flat([number(item.get("reward")) for item in group[1]]), finished


def default_filter_item(item: Item, task_type: str) -> bool:
    """Whether an item is complete and has a reward from 0 to 1."""
    if not all(key in item for key in ("instance_id", "reward", "messages")):
        return False
    return in_range(number(item["reward"])) and isinstance(item["messages"], list)


def default_normalize_group_data(group: ItemGroup) -> ItemGroup:
    """The group with rewards from 0 to 1 centred and scaled to standard deviation 1; the old ones are in `raw_reward`."""
    instance_id, items = group
    rewards = [number(item.get("reward")) for item in items]
    new = normalized(rewards)
    return instance_id, [
        item if reward is None else {**item, "reward": reward, "raw_reward": raw} for item, raw, reward in zip(items, rewards, new, strict=True)
    ]


def default_pad_group_data(group: ItemGroup, group_size: int) -> ItemGroup:
    """The group with exactly `group_size` items: the first ones are copied to the end, and rewards are scaled so that each instance weighs the same.

    Raises `ValueError` if more than half are missing.
    """
    instance_id, items = group
    order = padding(len(items), group_size)
    if order is None:
        raise ValueError(f"{len(items)} of {group_size} items are too few to be padded")
    return instance_id, [_scaled(items[place], factor) for place, factor in order]


def number(reward: Any) -> float | None:
    """A reward as a number; None for anything that is none."""
    if isinstance(reward, bool):
        return float(reward)
    return float(reward) if isinstance(reward, int | float) and math.isfinite(reward) else None


def in_range(reward: float | None) -> bool:
    """Whether a reward is one that the defaults work with."""
    return reward is not None and 0.0 <= reward <= 1.0


def is_flat(rewards: Sequence[float | None]) -> bool:
    """Whether there is nothing to compare. Items without a reward are left out.

    >>> is_flat([1.0, None, 1.0]), is_flat([1.0, -1.0])
    (True, False)
    """
    different = set(rewards)
    different.discard(None)
    return len(different) < 2


def normalized(rewards: Sequence[float | None]) -> list[float | None]:
    """The new reward of each; None where the old one stays and gets no `raw_reward`.

    >>> [reward and round(reward, 6) for reward in normalized([1.0, 0.0, None])]
    [1.0, -1.0, None]
    """
    valid = [reward for reward in rewards if reward is not None and 0.0 <= reward <= 1.0]
    if not valid or not any(valid):
        return [None] * len(rewards)
    mean = math.fsum(valid) / len(valid)
    spread = math.sqrt(math.fsum((reward - mean) ** 2 for reward in valid) / len(valid))
    if spread < FLAT:
        return [0.0 if in_range(reward) else None for reward in rewards]
    return [(reward - mean) / (spread + FLAT) if reward is not None and 0.0 <= reward <= 1.0 else None for reward in rewards]


def padding(num_items: int, group_size: int) -> list[tuple[int, float]] | None:
    """Which item stands at each place of a padded group, and what its reward is multiplied by. None if more than half are missing.

    >>> padding(3, 4)
    [(0, 0.6666666666666666), (1, 1.3333333333333333), (2, 1.3333333333333333), (0, 0.6666666666666666)]
    """
    missing = group_size - num_items
    if 2 * missing > group_size or num_items == 0:
        return None
    scale = group_size / num_items
    first = [(place, scale / 2 if place < missing else scale) for place in range(num_items)]
    return first + first[:missing] if missing > 0 else first


def num_placed(num_kept: int, group_size: int, min_valid_items: int) -> int | str:
    """How many items a valid group is served with if the filter keeps `num_kept`; or why it is dropped. `shape` without looking at rewards.

    >>> num_placed(6, 8, 5), num_placed(4, 8, 5), num_placed(3, 8, 0)
    (8, 'too_few_valid', 'too_few_to_pad')
    """
    if num_kept < min_valid_items:
        return "too_few_valid"
    if num_kept == 0 or 2 * (group_size - num_kept) > group_size:
        return "too_few_to_pad"
    return max(num_kept, group_size)


class Placed(NamedTuple):
    """One place of a group that is served: which member stands there, and with what reward."""

    member: int
    reward: float | None
    """None: as it was written."""
    raw_reward: float | None
    """None: the item gets none."""


def ask(rewards: Sequence[float | None], group_size: int, min_valid_group_size: int, *, timed_out: bool) -> str | None:
    """Why a finished group is not valid; None if it is. A timed-out one has been judged by its size already."""
    if timed_out:
        return None
    if len(rewards) < min_valid_group_size:
        return "too_few"
    return "equal_rewards" if is_flat(rewards) else None


def shape(rewards: Sequence[float | None], refused: Sequence[int], group_size: int, min_valid_items: int) -> list[Placed] | str:
    """What a valid group looks like when it is served: filtered, normalized and padded; or why it is dropped."""
    kept = [member for member in range(len(rewards)) if member not in refused] if refused else list(range(len(rewards)))
    if len(kept) < min_valid_items:
        return "too_few_valid"
    order = padding(len(kept), group_size)
    if order is None:
        return "too_few_to_pad"
    raw = [rewards[member] for member in kept]
    new = normalized(raw)
    placed = []
    for place, factor in order:
        before = raw[place] if new[place] is None else new[place]
        # A factor of 1 leaves the reward as it was written, byte for byte.
        changed = new[place] is not None or factor != 1.0
        placed.append(Placed(kept[place], before * factor if changed and before is not None else None, raw[place] if new[place] is not None else None))
    return placed


class RunningMeta:
    """Statistics over raw items, one at a time."""

    def __init__(self) -> None:
        self.instances: set[str] = set()
        self.samples = 0
        self._rewards = 0
        self._mean = 0.0
        self._squares = 0.0
        self._min = math.inf
        self._max = -math.inf

    def add(self, instance_id: str, reward: float | None) -> None:
        """Count an item."""
        self.instances.add(instance_id)
        self.samples += 1
        if reward is None:
            return
        # Welford's sum: a million rewards of nearly the same size keep their spread.
        self._rewards += 1
        step = reward - self._mean
        self._mean += step / self._rewards
        self._squares += step * (reward - self._mean)
        self._min = min(self._min, reward)
        self._max = max(self._max, reward)

    def meta_info(self) -> dict[str, Any]:
        """The keys of the original, and the spread of rewards."""
        known = self._rewards > 0
        return {
            "total_samples": self.samples,
            "num_groups": len(self.instances),
            "avg_group_size": self.samples / len(self.instances) if self.instances else 0,
            "avg_reward": self._mean if known else 0,
            "reward_min": self._min if known else 0,
            "reward_max": self._max if known else 0,
            "reward_std": math.sqrt(self._squares / (self._rewards - 1)) if self._rewards > 1 else 0,
        }


def _scaled(item: Item, factor: float) -> Item:
    reward = number(item.get("reward"))
    return dict(item) if factor == 1.0 or reward is None else {**item, "reward": reward * factor}
