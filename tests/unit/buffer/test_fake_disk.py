from __future__ import annotations

import errno

import pytest

from penstock.testing.disk import FakeDisk


def test_what_was_synced_survives_every_crash() -> None:
    for seed in range(100):
        disk = FakeDisk(seed)
        disk.append("log", b"safe")
        disk.sync("log")
        disk.append("log", b"unsafe")
        disk.crash()
        assert disk.read("log").startswith(b"safe")


def test_unsynced_writes_are_seen_lost_kept_torn_and_reordered() -> None:
    outcomes = set()
    for seed in range(300):
        disk = FakeDisk(seed)
        disk.append("log", b"aaaa")
        disk.append("log", b"bbbb")
        assert disk.read("log") == b"aaaabbbb"
        disk.crash()
        outcomes.add(disk.read("log"))
    assert {b"", b"aaaabbbb", b"aa", b"aaaab"} <= outcomes
    # The second write came through and the first did not.
    assert b"\0\0\0\0bbbb" in outcomes


def test_the_same_seed_crashes_the_same_way() -> None:
    def life(seed: int) -> bytes:
        disk = FakeDisk(seed)
        for index in range(20):
            disk.append("log", bytes([index]) * 9)
        disk.crash()
        return disk.read("log")

    assert [life(seed) for seed in range(20)] == [life(seed) for seed in range(20)]


def test_after_a_crash_what_is_left_is_safe() -> None:
    disk = FakeDisk(3)
    disk.append("log", b"x" * 50)
    disk.crash()
    left = disk.read("log")
    disk.crash()
    assert disk.read("log") == left


def test_what_was_written_before_a_failed_sync_stays_in_doubt() -> None:
    lost = 0
    for seed in range(50):
        disk = FakeDisk(seed)
        disk.append("log", b"doubt")
        disk.refuses_syncs = True
        with pytest.raises(OSError, match="log") as failure:
            disk.sync("log")
        assert failure.value.errno == errno.EIO
        disk.refuses_syncs = False
        disk.append("log", b"later")
        disk.sync("log")
        disk.crash()
        assert disk.read("log").endswith(b"later")
        lost += disk.read("log").startswith(b"\0")
    assert 0 < lost < 50


def test_a_full_disk_tears_the_write_that_does_not_fit() -> None:
    disk = FakeDisk()
    disk.free_bytes = 6
    disk.append("log", b"abcd")
    with pytest.raises(OSError, match="log") as failure:
        disk.append("log", b"efgh")
    assert failure.value.errno == errno.ENOSPC
    assert disk.read("log") == b"abcdef"
    disk.remove("log")
    disk.append("log", b"again")
    assert disk.free_bytes == 1


def test_a_flip_changes_one_bit() -> None:
    disk = FakeDisk()
    disk.append("log", b"\0\0\0")
    disk.sync("log")
    disk.flip("log", 1)
    first, second, third = disk.read("log")
    assert (first, third, second.bit_count()) == (0, 0, 1)
