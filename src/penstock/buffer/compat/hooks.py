"""The five hooks of a compatible read, as the service asks them: many groups at once, and never with an exception.

A read asks in a fixed order: `get_group_data_meta_info`, `is_valid_group`, `filter_item`, `normalize_group_data`, `pad_group_data`. Where a generator
brings no function of its own the service uses `defaults.py` itself; `Hooks` is only asked for those in `overridden`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

HookName = Literal["get_group_data_meta_info", "is_valid_group", "filter_item", "normalize_group_data", "pad_group_data"]

HOOK_NAMES: tuple[HookName, ...] = ("get_group_data_meta_info", "is_valid_group", "filter_item", "normalize_group_data", "pad_group_data")
"""In the order in which a read calls them."""

Item = dict[str, Any]
"""One item as it came, boolean rewards as 0 or 1."""
ItemGroup = tuple[str, list[Item]]
"""`(instance_id, items)`, the items in the order of their arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFault:
    """A hook raised, hung, or gave what it may not give. Its group is dropped; others are not touched."""

    hook: HookName
    message: str
    """What happened, in a sentence."""

    @property
    def reason(self) -> str:
        """Why the group is dropped.

        >>> HookFault(hook="filter_item", message="KeyError: 'score'").reason
        'hook_error:filter_item'
        """
        return f"hook_error:{self.hook}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSettings:
    """What hooks are told beside the data."""

    task_type: str
    group_size: int
    min_valid_group_size: int
    """`int(group_size * min_valid_group_size_ratio)`."""


class Hooks(Protocol):
    """The hooks of one task type. Every list in a reply is as long as `groups` and in its order.

    No method raises for what a hook did: a fault stands where the answer of that group would stand. An implementation that runs foreign code
    does so in another process, with a deadline.
    """

    @property
    def overridden(self) -> frozenset[HookName]:
        """Functions that are not the defaults; only these are asked for. There is at least one."""

    async def get_group_data_meta_info(self, groups: AsyncIterator[ItemGroup]) -> dict[str, Any] | HookFault:
        """Statistics over everything written since the last successful read. `groups` comes as a stream, an instance may come more than once:
        the original function is called once, with `{instance_id: items}`."""

    async def is_valid_group(self, groups: Sequence[ItemGroup], settings: HookSettings) -> list[tuple[bool, bool] | HookFault]:
        """`(valid, finished)` of each group; called as `is_valid_group((instance_id, items), min_valid_group_size, task_type)`."""

    async def filter_item(self, groups: Sequence[ItemGroup], settings: HookSettings) -> list[list[bool] | HookFault]:
        """Whether to keep each item of each group; called as `filter_item(item, task_type)`."""

    async def normalize_group_data(self, groups: Sequence[ItemGroup]) -> list[ItemGroup | HookFault]:
        """Each group with other rewards; called as `normalize_group_data((instance_id, items))`."""

    async def pad_group_data(self, groups: Sequence[ItemGroup], settings: HookSettings) -> list[ItemGroup | HookFault]:
        """Each group with a multiple of `group_size` items; called as `pad_group_data((instance_id, items), group_size)`."""


class Generators(Protocol):
    """What the routes ask of the part that runs generators."""

    async def start(self, payload: dict[str, Any]) -> object:
        """Start the generator that `payload["task_type"]` names, in a process of its own. Raises `InputError` if it cannot be started."""

    def states(self) -> Sequence[object]:
        """How each known generator stands, as plain values or dataclasses for a reply."""

    def hooks(self, task_type: str) -> Hooks | None:
        """The hooks of a task type; None for one that has no generator, or whose generator has no functions of its own."""
