"""What a reader is told about the time since its last successful read: statistics over raw items, groups that were finished, what was dropped.

Kept in memory as things happen, and made again from the store after a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.buffer.compat.defaults import RunningMeta
from penstock.buffer.store import Store
from penstock.ledger import Ledger
from penstock.ledger.arrivals import Arrived, Item
from penstock.types import GroupRecord, GroupState, MemberState


class Progress:
    """Since the last successful read of one reader."""

    def __init__(self) -> None:
        self.meta = RunningMeta()
        self.finished: list[str] = []
        """Instances, once for each pass that was finished."""
        self.dropped: Counter[str] = Counter()
        """Groups by reason; `late` counts items."""

    @classmethod
    def restored(cls, store: Store, ledger: Ledger, reader: str) -> Progress:
        """As it was when the store was last written to."""
        progress = cls()
        known = ledger.readers.get(reader)
        run = ledger.run.run
        for rollout in store.rollouts_since(run, known.read_at if known else -1.0):
            if rollout.form == "item":
                progress.meta.add(rollout.problem_id, rollout.reward)
                if rollout.failure == "late":
                    progress.dropped["late"] += 1
        for group in store.groups_since(run, known.ready_order if known else -1):
            if group.arrival is not None:
                progress.finish((group,))
        return progress

    def arrived(self, item: Item, answer: Arrived) -> None:
        """Count an item that was written."""
        if answer.duplicate:
            return
        self.meta.add(item.problem_id, item.reward)
        if answer.late:
            self.dropped["late"] += 1
        if answer.finished is not None:
            self.finish((answer.finished,))

    def finish(self, groups: Iterable[GroupRecord]) -> None:
        """Note groups that were finished, and why if they were dropped at once."""
        for group in groups:
            if group.arrival is not None:
                self.finished.append(group.arrival.instance)
                if group.state is GroupState.DROPPED:
                    self.dropped[str(group.reason)] += 1


def num_written(ledger: Ledger) -> int:
    """Items that were ever stored in a run, late ones included."""
    settled = (MemberState.ACCEPTED, MemberState.FAILED)
    return sum(count for counts in ledger.counts.values() for (state, _), count in counts.members.items() if state in settled)
