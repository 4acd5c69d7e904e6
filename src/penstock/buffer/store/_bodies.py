"""Bytes as they were accepted, wherever they are now: in the tables, beside the facts of an item, or in a file of the archive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.buffer.archive.reading import ArchiveReader
from penstock.buffer.store._connections import ReaderPool
from penstock.buffer.store._damage import Damage
from penstock.buffer.store._reads import Reads
from penstock.buffer.store._rows import PAYLOAD_COLUMNS, Row, payload_of
from penstock.buffer.store.protocol import StoredBody
from penstock.errors import CorruptError, RetiredError, UnknownError
from penstock.types import ArchiveFile, Moved, Payload


class Bodies:
    """Durable payloads. See `Store` for what each look-up raises."""

    def __init__(self, directory: Path, readers: ReaderPool, damage: Damage, files: Callable[[str], Iterable[ArchiveFile]]) -> None:
        """`files` knows the archive files of a run."""
        self._archive = ArchiveReader(directory)
        self._readers = readers
        self._damage = damage
        self._files = files

    def payload(self, run: str, uid: str) -> Payload:
        """One, by its uid."""
        with self._readers.connection() as connection:
            item = Reads(connection, self._damage.note).items.whole(run, uid)
            if item is not None and item[1] is not None:
                return replace(item[0], body=item[1]).payload
            row = connection.execute(f"SELECT {PAYLOAD_COLUMNS} FROM payloads WHERE run = ? AND uid = ?", (run, uid)).fetchone()
        if row is None:
            raise UnknownError(f"run {run!r} has no payload {uid!r}")
        return self._opened(row)

    def moved(self, run: str, uid: str) -> Moved | None:
        """Where in the archive it is; None if it is here, or nowhere."""
        with self._readers.connection() as connection:
            row = connection.execute(f"SELECT {PAYLOAD_COLUMNS} FROM payloads WHERE run = ? AND uid = ? AND encoding = 'archived'", (run, uid)).fetchone()
        found = None if row is None else payload_of(row)
        return found if isinstance(found, Moved) else None

    def of_groups(self, run: str, group_ids: Sequence[str]) -> dict[str, list[StoredBody]]:
        """Those of all rollouts of some groups, but for what is damaged or retired."""
        columns = ", ".join(f"payloads.{column}" for column in PAYLOAD_COLUMNS.split(", "))
        query = f"""SELECT rollouts.group_id, rollouts.rowid, {columns}
            FROM rollouts JOIN payloads ON payloads.run = rollouts.run AND payloads.uid = rollouts.uid
            WHERE rollouts.run = ? AND rollouts.group_id IN ({", ".join("?" * len(group_ids))})"""
        found: dict[str, list[StoredBody]] = {group_id: [] for group_id in group_ids}
        with self._readers.connection() as connection:
            rows = connection.execute(query, (run, *group_ids)).fetchall()
            for item, body in Reads(connection, self._damage.note).items.of_groups(run, group_ids):
                body = self._moved_body(item.run, item.uid) if body is None else body
                if body is not None:
                    found[item.group_id].append(StoredBody(item.uid, item.digest, body))
        # Sorted here: the database would carry the bodies through its sorter.
        for group_id, _, *row in sorted(rows, key=lambda row: row[1]):
            try:
                payload = self._opened(tuple(row))
            except (RetiredError, CorruptError):
                continue
            found[group_id].append(StoredBody(payload.uid, payload.digest, payload.body))
        return found

    def _opened(self, row: Row) -> Payload:
        """The payload of a row, or what stands in the archive for it."""
        try:
            found = payload_of(row)
            return self._archived(found) if isinstance(found, Moved) else found
        except CorruptError as error:
            self._damage.note("payload", str(row[0]), str(row[1]), error, row[-1])
            raise

    def _archived(self, moved: Moved) -> Payload:
        try:
            return self._archive.payload(moved)
        except UnknownError:
            file = next((file for file in self._files(moved.run) if file.name == moved.file), None)
            if file is not None and file.retired_at is not None:
                raise RetiredError(f"the bytes of {moved.uid!r} were retired with the archive file {moved.file}") from None
            raise CorruptError(f"the bytes of {moved.uid!r} are in the archive file {moved.file}, which is not there") from None

    def _moved_body(self, run: str, uid: str) -> bytes | None:
        try:
            return self.payload(run, uid).body
        except (RetiredError, CorruptError, UnknownError):
            return None
