"""Which archive files may go: worked out by hand."""

from __future__ import annotations

import pytest

from penstock.buffer.archive.config import ArchiveConfig
from penstock.buffer.archive.retention import to_retire
from penstock.types import ArchiveFile


def file(number: int, *, update: int | None, ended_at: float, size: int = 10, retired: bool = False) -> ArchiveFile:
    return ArchiveFile(
        run="r",
        name=f"f{number}",
        number=number,
        digest="d",
        size_bytes=size,
        rows=1,
        groups=1,
        newest_update=update,
        newest_ended_at=ended_at,
        retired_at=1.0 if retired else None,
    )


FILES = [
    file(0, update=1, ended_at=0, retired=True),
    file(1, update=4, ended_at=10),
    file(2, update=None, ended_at=20),
    file(3, update=9, ended_at=30),
    file(4, update=12, ended_at=40),
]


@pytest.mark.parametrize(
    ("config", "oldest_checkpoint", "expected"),
    [
        (ArchiveConfig(), 20, []),  # by default nothing goes
        (ArchiveConfig(keep_seconds=65), 20, [1, 2, 3]),  # at 100: what ended before 35
        (ArchiveConfig(keep_seconds=65), 5, [1, 2]),
        (ArchiveConfig(keep_seconds=65), 4, [2]),  # update 4 is replayed from update_4
        (ArchiveConfig(keep_seconds=65), 0, [2]),
        (ArchiveConfig(keep_seconds=65), None, [2]),  # no checkpoint yet: every plan may be needed
        (ArchiveConfig(keep_bytes=25), 20, [1, 2]),  # 40 bytes stand
        (ArchiveConfig(keep_bytes=25), 9, [1, 2]),
        (ArchiveConfig(keep_bytes=0), 9, [1, 2]),
        (ArchiveConfig(keep_bytes=39), 0, [2]),
        (ArchiveConfig(keep_bytes=25, keep_seconds=75), 20, [1, 2]),  # age takes 1 and leaves 30 bytes
    ],
)
def test_the_oldest_go_as_far_as_nobody_can_need_them(config: ArchiveConfig, oldest_checkpoint: int | None, expected: list[int]) -> None:
    found = to_retire(reversed(FILES), config, oldest_checkpoint=oldest_checkpoint, now=100.0)
    assert [file.number for file in found] == expected
