"""What has arrived of groups that nobody opens: a tray for each open one, and which group takes the next item."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.ledger.states import ENDED
from penstock.types import Arrival, ArrivedItem, GroupRecord, GroupState, RolloutRecord


@dataclass(slots=True)
class Tray:
    """What has arrived of an open group whose members are issued as they arrive."""

    rewards: list[float | None] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """`content_line` of each usable member."""
    refused: list[int] = field(default_factory=list)
    """Members that the default filter does not keep."""
    num_bytes: int = 0
    last_write_at: float = 0.0


class Trays:
    """The trays of a run. The ledger tells it of every group and item."""

    def __init__(self) -> None:
        self.by_environment: dict[str, OrderedDict[str, Tray]] = {}
        """Trays by environment and open group; the one that was written to last stands last."""
        self.taking: dict[tuple[str, str], str] = {}
        """By environment and problem: the group that takes the next item to arrive."""
        self.num_items = 0
        """Items in groups that have not ended."""
        self.num_bytes = 0

    def of(self, group: GroupRecord) -> Tray:
        """The tray of an open group."""
        return self.by_environment[group.environment][group.id]

    def put(self, group: GroupRecord, arrival: Arrival) -> None:
        """A group is in the state that its record says."""
        if group.state not in ENDED:
            self.num_items += len(arrival.rewards)
            self.num_bytes += arrival.num_bytes
        if group.state is GroupState.OPEN:
            self.by_environment.setdefault(group.environment, OrderedDict())[group.id] = Tray(last_write_at=group.opened_at)
        if takes_items(group):
            self.taking[group.environment, group.problem_id] = group.id

    def take(self, group: GroupRecord, arrival: Arrival) -> None:
        """It no longer is."""
        trays = self.by_environment.get(group.environment)
        tray = trays.pop(group.id, None) if trays else None
        self.num_items -= len(arrival.rewards if tray is None else tray.rewards)
        self.num_bytes -= arrival.num_bytes if tray is None else tray.num_bytes
        if takes_items(group):
            self.taking.pop((group.environment, group.problem_id), None)

    def take_ready(self, groups: Iterable[GroupRecord]) -> None:
        """Groups that were ready have ended."""
        num_items = num_bytes = 0
        for group in groups:
            arrival = group.arrival
            if arrival is not None:
                num_items += len(arrival.rewards)
                num_bytes += arrival.num_bytes
                # A read takes thousands, and nearly all are full.
                if len(arrival.rewards) < group.size and takes_items(group):
                    self.taking.pop((group.environment, group.problem_id), None)
        self.num_items -= num_items
        self.num_bytes -= num_bytes

    def fill(self, item: ArrivedItem | RolloutRecord) -> None:
        """An item was stored; one that came too late has no tray."""
        trays = self.by_environment.get(item.environment)
        tray = trays.get(item.group_id) if trays else None
        if trays is None or tray is None:
            return
        if not item.kept:
            tray.refused.append(item.member)
        tray.rewards.append(item.reward)
        tray.num_bytes += item.num_bytes
        tray.last_write_at = item.stored_at
        if item.failure is None:
            tray.lines.append(content_line(item))
        trays.move_to_end(item.group_id)
        self.num_items += 1
        self.num_bytes += item.num_bytes

    def restart(self, now: float) -> None:
        """Count the silence of every open group from now on, after the store was down."""
        for trays in self.by_environment.values():
            for tray in trays.values():
                tray.last_write_at = now

    def later(self, seconds: float) -> None:
        """A time in which nobody could write is no silence."""
        for trays in self.by_environment.values():
            for tray in trays.values():
                tray.last_write_at += seconds


def takes_items(group: GroupRecord) -> bool:
    """Whether the next item of its problem belongs to this group: it is open, or ready with room left and nobody has had it yet."""
    if group.arrival is None or group.state not in (GroupState.OPEN, GroupState.READY):
        return False
    return group.state is GroupState.OPEN or (len(group.arrival.rewards) < group.size and not group.arrival.timed_out and group.bound_at is None)


def content_line(rollout: ArrivedItem | RolloutRecord) -> str:
    """A usable rollout in the text that a group's digest is taken of."""
    return f"{rollout.member} {rollout.uid} {rollout.digest}"
