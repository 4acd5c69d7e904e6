"""Long looks at the tables, a page at a time: at most a page is held, and no transaction stays open between two."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Literal

import numpy as np

from penstock.buffer.store._connections import ReaderPool
from penstock.buffer.store._reads import Damaged, Reads
from penstock.buffer.store._rows import GROUPS, ROLLOUTS
from penstock.types import GroupRecord, RolloutRecord

_SCAN_PAGE = 500


class Scans:
    """What is durable, in some order. See `Store` for what each of them gives."""

    def __init__(self, readers: ReaderPool, damaged: Damaged) -> None:
        self._readers = readers
        self._damaged = damaged

    def rollouts_since(self, run: str, stored_at: float) -> Iterator[RolloutRecord]:
        return heapq.merge(self._items_since(run, stored_at), self._rollouts_since(run, stored_at), key=lambda rollout: rollout.stored_at, reverse=True)

    def _rollouts_since(self, run: str, stored_at: float) -> Iterator[RolloutRecord]:
        last = 1 << 62
        # Rows are numbered as they come, so the newest are found from the end without an index.
        while True:
            with self._readers.connection() as connection:
                rowids = connection.execute("SELECT rowid FROM rollouts WHERE rowid < ? ORDER BY rowid DESC LIMIT ?", (last, _SCAN_PAGE)).fetchall()
                if not rowids:
                    return
                page = Reads(connection, self._damaged).many(
                    ROLLOUTS, "WHERE run = ? AND rowid < ? AND rowid >= ? ORDER BY rowid DESC", (run, last, rowids[-1][0])
                )
            for rollout in page:
                if rollout.stored_at <= stored_at:
                    return
                yield rollout
            last = rowids[-1][0]

    def _items_since(self, run: str, stored_at: float) -> Iterator[RolloutRecord]:
        with self._readers.connection() as connection:
            (last,) = connection.execute("SELECT coalesce(max(number), -1) FROM items").fetchone()
        while last >= 0:
            with self._readers.connection() as connection:
                page = Reads(connection, self._damaged).items.many(
                    "WHERE number <= ? AND number > ? AND run = ? ORDER BY number DESC", (last, last - _SCAN_PAGE, run)
                )
            for item in page:
                if item.stored_at <= stored_at:
                    return
                yield item.rollout
            last -= _SCAN_PAGE

    def groups_since(self, run: str, ready_order: int) -> tuple[GroupRecord, ...]:
        with self._readers.connection() as connection:
            return tuple(Reads(connection, self._damaged).many(GROUPS, "WHERE run = ? AND ready_ord > ? ORDER BY ready_ord", (run, ready_order)))

    def groups(self, run: str) -> Iterator[GroupRecord]:
        with self._readers.connection() as connection:
            numbers = np.array(connection.execute("SELECT ord, rowid FROM groups WHERE run = ?", (run,)).fetchall(), dtype=np.int64).reshape(-1, 2)
        rowids = numbers[np.lexsort((numbers[:, 1], numbers[:, 0])), 1]
        for start in range(0, len(rowids), _SCAN_PAGE):
            page = tuple(rowids[start : start + _SCAN_PAGE].tolist())
            with self._readers.connection() as connection:
                groups = Reads(connection, self._damaged).many(GROUPS, f"WHERE rowid IN ({', '.join('?' * len(page))})", page)
            yield from sorted(groups, key=lambda group: group.order)

    def rollouts(self, run: str) -> Iterator[RolloutRecord]:
        return heapq.merge(self._scan_by_uid(run, "rollouts"), self._scan_by_uid(run, "items"), key=lambda rollout: rollout.uid)

    def _scan_by_uid(self, run: str, table: Literal["rollouts", "items"]) -> Iterator[RolloutRecord]:
        last = ""
        while True:
            with self._readers.connection() as connection:
                uids = connection.execute(f"SELECT uid FROM {table} WHERE run = ? AND uid > ? ORDER BY uid LIMIT ?", (run, last, _SCAN_PAGE)).fetchall()
                if not uids:
                    return
                where, values, reads = "WHERE run = ? AND uid > ? AND uid <= ? ORDER BY uid", (run, last, uids[-1][0]), Reads(connection, self._damaged)
                page = reads.many(ROLLOUTS, where, values) if table == "rollouts" else [item.rollout for item in reads.items.many(where, values)]
            yield from page
            last = uids[-1][0]

    def settled_groups(self, run: str, limit: int) -> tuple[GroupRecord, ...]:
        with self._readers.connection() as connection:
            return tuple(Reads(connection, self._damaged).many(GROUPS, "WHERE run = ? AND to_archive = 1 ORDER BY ord LIMIT ?", (run, limit)))
