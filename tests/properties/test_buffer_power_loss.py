"""Power is lost at every commit boundary of a history of items, reads and leases, on a disk that drops, tears and reorders what was not synced.

After each loss the buffer must hold everything that was acknowledged, as it was acknowledged, and must go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from penstock import ledger as law
from penstock.buffer.core import Buffer, Pending
from penstock.errors import FencedError
from penstock.ledger.arrivals import ArrivalRules, Item, Reading
from penstock.testing.disk import FakeDisk
from penstock.testing.store import MemoryStore
from penstock.types import GroupState, Laws, LeaseRecord, LeaseRequest, Record
from penstock.wire import digest

RULES = ArrivalRules(group_size=2)
STEPS: tuple[tuple[str, ...], ...] = (
    ("write", "a0", "a"),
    ("write", "b0", "b"),
    ("write", "a1", "a"),
    ("write", "a1", "a"),
    ("read", "r1", "a/0"),
    ("write", "b1", "b"),
    ("write", "c0", "c"),
    ("write", "c1", "c"),
    ("take", "l1"),
    ("settle", "l1"),
    ("take", "l2"),
    ("release", "l2"),
    ("write", "d0", "d"),
    ("read", "r2", "c/0"),
)
"""Two groups are read and one is leased and settled; another lease is given back."""


class ForgetfulStore(MemoryStore):
    """The sabotage: says that a change is durable before it is synced."""

    def submit(self, records: Sequence[Record]) -> Future[None]:
        super().submit(records)
        done: Future[None] = Future()
        done.set_result(None)
        return done


class Life:
    """A buffer between two losses of power, and what it has acknowledged in all of them."""

    def __init__(self, disk: FakeDisk, store: Callable[[FakeDisk], MemoryStore]) -> None:
        self._disk = disk
        self._make = store
        self.acknowledged: list[tuple[str, ...]] = []
        self._boot()

    def _boot(self) -> None:
        self.store = self._make(self._disk)
        self.buffer = Buffer(self.store, lambda: 100.0)
        pending = self.buffer.open_run("run", Laws(min_group_size=1), "compatible")
        self.store.sync_now()
        pending.durable.result(0)

    def do(self, step: tuple[str, ...], *, sync: bool) -> None:
        """One step, which is acknowledged if its commit comes through."""
        try:
            pending = self._decide(step)
        except FencedError:
            # Asked for again, and over already: the first time had survived.
            assert step[0] == "take"
            return
        if sync:
            self.store.sync_now()
        if pending.durable.done() and pending.durable.exception() is None:
            self.acknowledged.append(step)

    def lose_power(self) -> None:
        self._disk.crash()
        self._boot()

    def check(self) -> None:
        """Everything acknowledged is there as it was; everything that is there adds up."""
        ledger = self.buffer.ledger("run")
        assert law.imbalance(ledger) == 0
        for verb, name, *rest in self.acknowledged:
            if verb == "write":
                stored = self.store.rollout("run", name)
                assert stored is not None, f"{name} was acknowledged and lost"
                assert stored.group_id == f"{rest[0]}/0"
                assert self.store.payload("run", name).body == name.encode()
            else:
                lease = ledger.leases.get(name) or self.store.lease("run", name)
                assert lease is not None, f"{verb} {name} was acknowledged and lost"
        for group in self.store.scan_groups("run"):
            uids = [rollout.uid for rollout in self.store.rollouts("run", group.id)]
            assert len(uids) == len(set(uids)) <= RULES.group_size
            assert {uid[0] for uid in uids} <= {group.problem_id}
            assert (group.state is GroupState.SPENT) <= (group.lease is not None and len(uids) == RULES.group_size)

    def _decide(self, step: tuple[str, ...]) -> Pending[Any]:
        verb, name, *rest = step
        if verb == "write":
            body = name.encode()
            item = Item(uid=name, instance=rest[0], problem_id=rest[0], environment="env", reward=float(name[1]), kept=True, body=body, digest=digest(body))
            return self.buffer.arrive("run", RULES, item)
        if verb == "read":
            known = self.store.lease("run", name)
            served = [] if known is not None else [group for group in rest if self.buffer.ledger("run").groups[group].state is GroupState.READY]
            return self.buffer.read("run", Reading(read_id=name, served=served), "reader")
        if verb == "take":
            return self.buffer.take_lease("run", name, "consumer", LeaseRequest(groups=1, seconds=3600.0))
        return {"settle": self.buffer.settle_lease, "release": self.buffer.release_lease}[verb]("run", name, "consumer")


def history(disk: FakeDisk, lost_at: int, held: int, store: Callable[[FakeDisk], MemoryStore] = MemoryStore) -> Life:
    """All steps, with power lost after `lost_at` of them while the last `held` were not synced; those are asked for again."""
    life = Life(disk, store)
    for place, step in enumerate(STEPS[:lost_at]):
        life.do(step, sync=place < lost_at - held)
    life.lose_power()
    life.check()
    for step in STEPS[max(0, lost_at - held) :]:
        life.do(step, sync=True)
    life.check()
    return life


@pytest.mark.parametrize("seed", range(8))
def test_power_may_be_lost_at_every_commit_and_all_that_was_acknowledged_is_there(seed: int) -> None:
    for lost_at in range(len(STEPS) + 1):
        for held in range(min(lost_at, 4) + 1):
            life = history(FakeDisk(100 * seed + lost_at), lost_at, held)
            states = {group.id: group.state for group in life.store.scan_groups("run")}
            assert states == {"a/0": GroupState.SPENT, "b/0": GroupState.SPENT, "c/0": GroupState.SPENT, "d/0": GroupState.OPEN}
            assert [uid for _, uid, *_ in STEPS if life.store.rollout("run", uid)] == ["a0", "b0", "a1", "a1", "b1", "c0", "c1", "d0"]


def test_a_store_that_answers_before_it_has_synced_is_found_out() -> None:
    with pytest.raises(AssertionError, match="was acknowledged and lost"):
        for seed in range(20):
            history(FakeDisk(seed), 5, 3, ForgetfulStore)


def test_leases_that_were_acknowledged_come_back_with_their_fence() -> None:
    for seed in range(20):
        disk = FakeDisk(seed)
        life = Life(disk, MemoryStore)
        for step in STEPS[:9]:
            life.do(step, sync=True)
        before = life.store.lease("run", "l1")
        assert isinstance(before, LeaseRecord)
        life.lose_power()
        after = life.buffer.ledger("run").leases["l1"]
        assert (after.groups, after.fence, after.consumer) == (before.groups, before.fence, before.consumer)
        life.do(("settle", "l1"), sync=True)
        assert life.store.group("run", after.groups[0].id).state is GroupState.SPENT  # type: ignore[union-attr]
