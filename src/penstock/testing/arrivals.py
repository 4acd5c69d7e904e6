"""A ledger of arriving items to try rules on, without disk or clock."""

from __future__ import annotations

from penstock.ledger import arrivals
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
        body = f"{uid} {instance} {reward} {content}".encode()
        item = Item(uid=uid, instance=instance, problem_id=instance, environment=environment, reward=reward, kept=kept, body=body, digest=digest(body))
        return self.do(arrivals.arrive(self.ledger, self, self.rules, item, self.now))

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
