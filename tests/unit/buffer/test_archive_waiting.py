"""When the archiver looks again: not before there can be enough for a file, since to look is to open what waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.buffer.archive.archiver import Archiver
from penstock.buffer.archive.collecting import collect
from penstock.buffer.archive.config import ArchiveConfig
from penstock.buffer.service import BufferService
from penstock.buffer.store import SqliteStore
from penstock.types import GroupRecord, GroupState, Laws, Purpose, RunRecord


def ended(order: int, ended_at: float) -> GroupRecord:
    return GroupRecord(
        run="r",
        id=f"g{order}",
        environment="e",
        problem_id="p",
        purpose=Purpose.TRAIN,
        size=2,
        seed=0,
        state=GroupState.SPENT,
        order=order,
        ended_at=ended_at,
    )


@pytest.mark.parametrize(
    ("ends", "rollouts_per_file", "most_wait_seconds", "expected"),
    [
        ((100.0, 130.0, 110.0, 120.0), 4, 900.0, 170.0),  # the second of them makes four
        ((100.0, 130.0, 110.0, 120.0), 100, 30.0, 190.0),  # the first will have waited long
        ((100.0, 130.0, 110.0, 120.0), 100, 900.0, 200.0),  # more may end from now on
        ((), 4, 900.0, 200.0),
    ],
)
def test_it_looks_again_when_there_can_be_enough(
    tmp_path: Path, ends: tuple[float, ...], rollouts_per_file: int, most_wait_seconds: float, expected: float
) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    store.submit([RunRecord(run="r", laws=Laws(), opened_at=0.0), *(ended(order, at) for order, at in enumerate(ends))]).result()
    config = ArchiveConfig(after_seconds=60.0, rollouts_per_file=rollouts_per_file, most_wait_seconds=most_wait_seconds)
    assert collect(store, "r", config, 140.0).look_again_at == expected
    assert not collect(store, "r", config, expected - 0.5).groups
    assert bool(collect(store, "r", config, expected).groups) == (expected < 200.0)
    store.close()


class Watched(SqliteStore):
    """Counts who looks at what waits."""

    num_looks = 0

    def settled_groups(self, run: str, limit: int) -> tuple[GroupRecord, ...]:
        self.num_looks += 1
        return super().settled_groups(run, limit)


@pytest.mark.parametrize(("after_seconds", "num_looks"), [(3600.0, 1), (0.0, 2)])
async def test_what_waits_is_looked_at_once_until_there_can_be_enough(tmp_path: Path, after_seconds: float, num_looks: int) -> None:
    store = Watched(tmp_path / "store.sqlite")
    store.submit([RunRecord(run="r", laws=Laws(), opened_at=0.0)]).result()
    service = BufferService(store, expire_seconds=60.0, max_waiting=8)
    async with service.running():
        archiver = Archiver(service, ArchiveConfig(after_seconds=after_seconds), store_directory=tmp_path, directory=tmp_path / "archive")
        assert [await archiver.archive_some("r") for _ in range(2)] == [False, False]
    assert store.num_looks == num_looks
