"""Items that arrive: one, or all that a turn of the event loop has brought, thousands a second, decided together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from penstock.errors import ConflictError
from penstock.ledger.arrivals import ArrivalPast, ArrivalRules, Arrived, Item, conflict, enough, made_ready, new_group, newest_pass, settled_item
from penstock.ledger.book import Decision, Ledger
from penstock.ledger.trays import Tray, content_line
from penstock.types import Arrival, ArrivedItem, GroupRecord, GroupState, Record
from penstock.wire import digest

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


def arrive(ledger: Ledger, past: ArrivalPast, rules: ArrivalRules, item: Item, now: float) -> Decision[Arrived]:
    """Store an item in the group that its instance forms now. The same uid with the same bytes changes nothing, with others it is refused."""
    together = arrive_all(ledger, past, rules, (item,), now)
    for answer in together.reply:
        if isinstance(answer, ConflictError):
            raise answer
        return Decision(answer, together.records)
    group_id = ledger.trays.taking.get((item.environment, item.problem_id))
    if group_id is not None:
        return _join_ready(ledger, past, ledger.groups[group_id], item, now)
    last, _ = newest_pass(ledger, past, item)
    assert last is not None, "it is late for a pass that there is"
    stored = settled_item(ledger, last.id, len(past.rollouts(ledger.run.run, last.id)), item, now, "late")
    return Decision(Arrived(stored, late=True), (stored,))


def arrive_all(ledger: Ledger, past: ArrivalPast, rules: ArrivalRules, items: Sequence[Item], now: float) -> Decision[tuple[Arrived | ConflictError, ...]]:
    """Decide about the first of `items`, as many as can be decided together, each as it would be alone after those before it.

    It ends before an item that is late, or whose instance has a group that is ready or was opened here for another task: if that is the first, the
    answer is empty and it needs `arrive`.
    """
    growing_by: dict[tuple[str, str], _Growing] = {}
    stored_here: dict[str, str] = {}
    answers: list[Arrived | ConflictError] = []
    arrived: list[ArrivedItem] = []
    opened: set[str] = set()
    num_ready = 0
    for item in items:
        known = stored_here.get(item.uid) or _stored_digest(ledger, past, item.uid)
        if known is not None:
            answers.append(_AGAIN if known == item.digest else conflict(item, known))
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


def _join_ready(ledger: Ledger, past: ArrivalPast, group: GroupRecord, item: Item, now: float) -> Decision[Arrived]:
    """One more for a group that has enough and that nobody has read yet."""
    assert group.arrival is not None
    stored = settled_item(ledger, group.id, len(group.arrival.rewards), item, now, item.failure)
    lines = [content_line(known) for known in past.rollouts(group.run, group.id) if known.failure is None]
    lines += [content_line(stored)] if stored.failure is None else []
    larger = replace(group, arrival=_with(group.arrival, stored), usable=len(lines), digest=digest("\n".join(lines).encode()))
    return Decision(Arrived(stored), (stored, larger))


def _with(arrival: Arrival, item: ArrivedItem) -> Arrival:
    return Arrival(
        instance=arrival.instance,
        rewards=(*arrival.rewards, item.reward),
        refused=arrival.refused if item.kept else (*arrival.refused, item.member),
        num_bytes=arrival.num_bytes + item.num_bytes,
    )
