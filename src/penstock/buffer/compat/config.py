"""Settings of the compatible routes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import ConfigError, InvalidError
from penstock.ledger.arrivals import ArrivalRules
from penstock.wire import check_id

log = logging.getLogger(__name__)

_COUNTS = ("group_size", "max_buffer_size", "max_buffer_bytes", "cache_bytes")
_RATIOS = ("min_valid_group_size_ratio", "min_valid_item_size_ratio", "min_timeout_group_size_ratio")
_WHOLE = ("group_size", "max_buffer_size")
FROM_PAYLOAD = (*_WHOLE, *_RATIOS, "group_timeout_seconds")
"""What `/start_rollout` may set for its task type; `num_repeat_per_sample` stands for `group_size` where that is not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatConfig:
    """How items become groups and groups are read. Names are the seed's."""

    run: str = "default"
    """Run that items belong to; opened by the first of them."""
    task_type: str = "default"
    """Environment of items, until `/start_rollout` names another."""
    group_size: int = 8
    """Items of one group."""
    min_valid_group_size_ratio: float = 1.0
    """A group is finished with this share of its items."""
    min_valid_item_size_ratio: float = 0.7
    """Share of `group_size` that must be left after filtering."""
    group_timeout_seconds: float = 300.0
    """A group that gets no item for so long is finished too."""
    min_timeout_group_size_ratio: float = 0.7
    """Share of its items that such a group needs to be used."""
    max_buffer_size: int = 1_000_000_000
    """Items that may wait to be read."""
    max_buffer_bytes: int | None = None
    """Bytes that may wait to be read."""
    cache_bytes: int = 192 * 1024 * 1024
    """Memory for items that wait to be read; what is not there is read from the store."""
    hold_seconds: float = 60.0
    """How long a write is held while the buffer is full, before it is refused."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and not 1 <= value < 2**53:
                raise ConfigError(f"{name} must be 1 to 2**53, got {value}")
        if not 0 <= self.min_valid_item_size_ratio <= 1:
            raise ConfigError(f"min_valid_item_size_ratio must be 0 to 1, got {self.min_valid_item_size_ratio}")
        if not 0 <= self.hold_seconds <= 3600:
            raise ConfigError(f"hold_seconds must be 0 to 3600, got {self.hold_seconds}")
        try:
            check_id(self.run, "run")
            check_id(self.task_type, "task_type")
            _ = self.rules
        except InvalidError as error:
            raise ConfigError(str(error)) from None
        if self.min_valid_item_size_ratio <= 0.5:
            log.warning(
                "min_valid_item_size_ratio is %g: groups with more than half of their items missing cannot be padded, and are dropped",
                self.min_valid_item_size_ratio,
            )

    @property
    def rules(self) -> ArrivalRules:
        """When a group is finished."""
        return ArrivalRules(
            group_size=self.group_size,
            min_valid_group_size_ratio=self.min_valid_group_size_ratio,
            group_timeout_seconds=self.group_timeout_seconds,
            min_timeout_group_size_ratio=self.min_timeout_group_size_ratio,
        )

    def min_valid_items(self, group_size: int) -> int:
        """Items that a group of this size must have left after filtering."""
        return int(group_size * self.min_valid_item_size_ratio)

    def with_payload(self, payload: dict[str, Any]) -> CompatConfig:
        """These settings as `/start_rollout` changes them. Numbers may be text. Raises `InvalidError` for one that cannot be."""
        given = {name: payload[name] for name in FROM_PAYLOAD if payload.get(name) is not None}
        told: dict[str, str] = {}
        """What a setting is called in the payload, if it has another name there."""
        if "group_size" not in given and payload.get("num_repeat_per_sample") is not None:
            told["group_size"], given["group_size"] = "num_repeat_per_sample", payload["num_repeat_per_sample"]
        changes: dict[str, Any] = {"task_type": payload.get("task_type", self.task_type)}
        for name, value in given.items():
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                raise InvalidError(f"{told.get(name, name)}: must be a number, got {str(value)[:80]!r}") from None
            if name in _WHOLE and not number.is_integer():
                raise InvalidError(f"{told.get(name, name)}: must be a whole number, got {value}")
            changes[name] = int(number) if name in _WHOLE else number
        try:
            return replace(self, **changes)
        except ConfigError as error:
            name, _, sentence = str(error).partition(" ")
            raise InvalidError(f"{told.get(name, name)} {sentence}") from None
