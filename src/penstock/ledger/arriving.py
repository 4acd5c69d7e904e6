"""Items that arrive together, decided together: what a turn of the event loop has brought, thousands a second."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from penstock.errors import ConflictError
from penstock.ledger.arrivals import ArrivalPast, ArrivalRules, Arrived, Item, conflict, enough, made_ready, new_group, newest_pass, settled_item
from penstock.ledger.book import Decision, Ledger
from penstock.ledger.trays import Tray, content_line
from penstock.types import Arrival, ArrivedItem, GroupRecord, GroupState, Record

_AGAIN = Arrived(None)


@dataclass(slots=True)
class _Growing:
    """An open group that some of the items join."""

    group: GroupRecord
    tray: Tray | None
    """What it had before; None if it is new."""
    num_items: int
    """With those that join."""
    enough: int
    items: list[ArrivedItem] = field(default_factory=list)
    """Those that join."""
    ready: GroupRecord | None = None

    def finish(self, now: float, ready_order: int) -> GroupRecord:
        """It has enough."""
        before = self.tray or Tray()
        arrival = Arrival(
            instance=self.group.arrival.instance if self.group.arrival else "",
            rewards=(*before.rewards, *[item.reward for item in self.items]),
            refused=(*before.refused, *[item.member for item in self.items if not item.kept]),
            num_bytes=before.num_bytes + sum([item.num_bytes for item in self.items]),
        )
        lines = [*before.lines, *[content_line(item) for item in self.items if item.failure is None]]
        self.ready = made_ready(self.group, arrival, lines, now, ready_order)
        return self.ready


def arrive_all(ledger: Ledger, past: ArrivalPast, rules: ArrivalRules, items: Sequence[Item], now: float) -> Decision[tuple[Arrived | ConflictError, ...]]:
    """Decide about the first of `items`, as many as can be decided together, each as `arrive` would after those before it.

    It ends before an item that is late, or whose instance has a group that is ready or was opened for another task: if that is the first, the answer
    is empty and it needs `arrive`.
    """
    growing_by: dict[tuple[str, str], _Growing] = {}
    stored_here: dict[str, str] = {}
    answers: list[Arrived | ConflictError] = []
    arrived: list[ArrivedItem] = []
    opened: set[str] = set()
    num_ready = 0
    for item in items:
        digest = stored_here.get(item.uid) or _stored_digest(ledger, past, item.uid)
        if digest is not None:
            answers.append(_AGAIN if digest == item.digest else conflict(item, digest))
            continue
        key = (item.environment, item.problem_id)
        growing = growing_by.get(key)
        if growing is None:
            growing = _joined(ledger, past, rules, item, len(opened), now)
            if growing is None or growing.group.id in opened:
                break
            growing_by[key] = growing
            if growing.tray is None:
                opened.add(growing.group.id)
        elif growing.ready is not None:
            break
        stored = settled_item(ledger, growing.group.id, growing.num_items, item, now, item.failure)
        growing.items.append(stored)
        arrived.append(stored)
        growing.num_items += 1
        stored_here[item.uid] = item.digest
        if growing.num_items < growing.enough:
            answers.append(Arrived(stored))
        else:
            num_ready += 1
            answers.append(Arrived(stored, finished=growing.finish(now, ledger.last_ready_order + num_ready)))
    return Decision(tuple(answers), _records(growing_by.values(), arrived))


def _records(touched: Collection[_Growing], arrived: Sequence[ArrivedItem]) -> tuple[Record, ...]:
    """New groups as they are now, so that one that was opened and finished here is written once; items in their order; older groups that they finished."""
    new = [growing.ready or growing.group for growing in touched if growing.tray is None]
    finished = [growing.ready for growing in touched if growing.tray is not None and growing.ready is not None]
    return (*new, *arrived, *finished)


def _stored_digest(ledger: Ledger, past: ArrivalPast, uid: str) -> str | None:
    known = ledger.find_rollout(past, uid)
    return None if known is None else known.digest


def _joined(ledger: Ledger, past: ArrivalPast, rules: ArrivalRules, item: Item, num_new: int, now: float) -> _Growing | None:
    """The open group that takes the item, the next one to be opened if there is none; None if it is late, or its group is ready."""
    group_id = ledger.trays.taking.get((item.environment, item.problem_id))
    if group_id is not None:
        group = ledger.groups[group_id]
        if group.state is not GroupState.OPEN:
            return None
        tray = ledger.trays.of(group)
        return _Growing(group, tray, len(tray.rewards), enough(rules, group))
    last, num_passes = newest_pass(ledger, past, item)
    if last is not None and len(past.rollouts(ledger.run.run, last.id)) < last.size:
        return None
    fresh = new_group(ledger, rules, item, num_passes, ledger.last_order + 1 + num_new, now)
    return _Growing(fresh, None, 0, enough(rules, fresh))
