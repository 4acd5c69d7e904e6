"""`MemoryStore` on a fake disk keeps the contract of a store, whatever the disk does with what was not synced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.services.item_contract import ItemContract
from tests.services.store_contract import StoreContract
from tests.services.store_stage import ONE_OF_EACH, group, payload

from penstock.buffer.store import Store
from penstock.errors import StoreError
from penstock.testing.disk import FakeDisk
from penstock.testing.store import MemoryStore


class MemoryRig:
    def __init__(self, seed: int) -> None:
        self.disk = FakeDisk(seed)

    def open(self) -> Store:
        return MemoryStore(self.disk)

    def settle(self, store: Store) -> None:
        assert isinstance(store, MemoryStore)
        store.sync_now()

    @contextmanager
    def hold(self, store: Store) -> Iterator[None]:
        yield

    def crash(self, store: Store) -> None:
        self.disk.crash()

    def fill(self, store: Store) -> None:
        self.disk.free_bytes = 5000

    def refuse_syncs(self, store: Store) -> None:
        self.disk.refuses_syncs = True

    def heal(self) -> None:
        self.disk.free_bytes = None
        self.disk.refuses_syncs = False

    def flip(self, needle: bytes) -> None:
        self.disk.flip("store.log", self.disk.read("store.log").index(needle))


@pytest.fixture(params=range(3))
def rig(request: pytest.FixtureRequest) -> MemoryRig:
    return MemoryRig(request.param)


class TestMemoryStore(StoreContract):
    pass


class TestMemoryStoreItems(ItemContract):
    pass


def test_a_log_is_read_without_any_memory_of_writing_it() -> None:
    disk, copy = FakeDisk(), FakeDisk()
    store = MemoryStore(disk)
    store.submit(ONE_OF_EACH)
    store.close()
    copy.append("store.log", disk.read("store.log"))
    before, after = MemoryStore(disk).load("demo"), MemoryStore(copy).load("demo")
    assert before is not None
    assert before == after


@pytest.mark.parametrize("seed", range(60))
def test_any_crash_leaves_the_acknowledged_change_sets_and_a_prefix_of_the_others(seed: int) -> None:
    disk = FakeDisk(seed)
    store = MemoryStore(disk)
    num_acknowledged = 0
    for index in range(30):
        store.submit([group(index), payload(f"u{index}", bytes([index]) * (index * 13 % 40))])
        if (index * 7 + seed) % 5 == 0:
            store.sync_now()
            num_acknowledged = index + 1
        if (index * 11 + seed) % 7 == 0:
            disk.crash()
            store = MemoryStore(disk)
            survivors = [found.order for found in store.scan_groups("demo")]
            assert survivors == list(range(len(survivors)))
            assert num_acknowledged <= len(survivors) <= index + 1
            assert all(store.payload("demo", f"u{order}").body == bytes([order]) * (order * 13 % 40) for order in survivors)
            assert store.corrupt() == ()
            # What survived is safe from now on: the next crash must not take it.
            num_acknowledged = len(survivors)
            for missing in range(len(survivors), index + 1):
                store.submit([group(missing), payload(f"u{missing}", bytes([missing]) * (missing * 13 % 40))])


@pytest.mark.parametrize("seed", range(20))
def test_what_was_written_before_a_failed_sync_is_written_again_before_it_is_believed(seed: int) -> None:
    disk = FakeDisk(seed)
    store = MemoryStore(disk)
    disk.refuses_syncs = True
    store.submit([group(0)])
    store.sync_now()
    disk.refuses_syncs = False
    store.reopen()
    seen = store.group("demo", "src/0/0")
    acknowledged = store.submit([group(1)])
    store.sync_now()
    assert acknowledged.result(0) is None
    disk.crash()
    store = MemoryStore(disk)
    assert store.group("demo", "src/0/0") == seen
    assert store.group("demo", "src/0/1") == group(1)


def test_a_store_on_a_disk_that_refuses_is_not_opened() -> None:
    disk = FakeDisk()
    disk.refuses_writes = True
    with pytest.raises(StoreError, match=r"store\.log cannot be written"):
        MemoryStore(disk)


def test_reopening_forgets_nothing_that_was_synced_and_fails_what_waits() -> None:
    store = MemoryStore(FakeDisk())
    store.submit([group(0)])
    store.sync_now()
    waiting = store.submit([group(1)])
    assert store.num_waiting == 1
    store.reopen()
    with pytest.raises(StoreError, match="reopened"):
        waiting.result(0)
    assert store.group("demo", "src/0/0") == group(0)
