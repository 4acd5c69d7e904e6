"""A ledger of arriving items to try rules on, without disk or clock."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import ConflictError
from penstock.ledger import arrivals, arriving
from penstock.ledger.arrivals import ArrivalRules, Arrived, Item, Reading
from penstock.testing.memory import Memory
from penstock.types import GroupRecord, Laws, LeaseRecord
from penstock.wire import digest


class Tray(Memory):
    """A run under the rules of arrival. Every verb decides and applies at once."""

    def __init__(self, **rules: float) -> None:
        self.rules = ArrivalRules(**rules)  # type: ignore[arg-type]
        super().__init__(Laws(min_group_size=1), "compatible")

    def write(self, uid: str, instance: str = "a", reward: float | None = 1.0, *, content: str = "", environment: str = "env", kept: bool = True) -> Arrived:
        """Write an item."""
        item = item_of(uid, instance, reward, content=content, environment=environment, kept=kept)
        return self.do(arriving.arrive(self.ledger, self, self.rules, item, self.now))

    def write_together(self, items: Sequence[Item]) -> list[Arrived | ConflictError]:
        """Write items as they are written that come in one turn."""
        answers: list[Arrived | ConflictError] = []
        while len(answers) < len(items):
            decision = arriving.arrive_all(self.ledger, self, self.rules, items[len(answers) :], self.now)
            answers += self.do(decision) or [self.write_item(items[len(answers)])]
        return answers

    def write_item(self, item: Item) -> Arrived | ConflictError:
        """Write an item that may be refused."""
        try:
            return self.do(arriving.arrive(self.ledger, self, self.rules, item, self.now))
        except ConflictError as error:
            return error

    def time_out(self, environment: str = "env") -> tuple[GroupRecord, ...]:
        """Act on the clock."""
        return self.do(arrivals.time_out(self.ledger, self.rules, environment, self.now))

    def read(self, *served: str, read_id: str = "r1", **dropped: str) -> LeaseRecord | None:
        """Read groups for good; those named with a reason are dropped."""
        reading = Reading(read_id=read_id, served=served, dropped={name.replace("_", "/"): reason for name, reason in dropped.items()})
        return self.do(arrivals.read(self.ledger, self, reading, "reader", self.now))

    def state(self, group_id: str) -> str:
        """State of a group, with the reason if it was dropped."""
        group = self.stored_groups[group_id]
        return f"{group.state.value}({group.reason})" if group.reason else group.state.value


def item_of(uid: str, instance: str, reward: float | None, *, content: str = "", environment: str = "env", kept: bool = True) -> Item:
    """An item whose bytes follow from what it says."""
    body = f"{uid} {instance} {reward} {content}".encode()
    return Item(uid=uid, instance=instance, problem_id=instance, environment=environment, reward=reward, kept=kept, body=body, digest=digest(body))
