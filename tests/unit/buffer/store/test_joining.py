"""What joins waits for `send`, unless it is enough for a commit of its own."""

from __future__ import annotations

from pathlib import Path

from penstock.buffer.store.sqlite import SqliteStore
from penstock.types import Payload


def _payloads(first: int, count: int) -> list[Payload]:
    return [Payload(run="r", uid=f"u{number}", content_type="json", body=b"{}", digest="d") for number in range(first, first + count)]


def test_many_payloads_are_written_before_anybody_sends_them(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    few = store.join(_payloads(0, 8))
    assert not few.done()
    many = store.join(_payloads(8, 600))
    assert many is few
    many.result(60)
    later = store.join(_payloads(1000, 1))
    assert later is not many
    store.send()
    later.result(60)
    assert [store.payload("r", uid).body for uid in ("u0", "u607", "u1000")] == [b"{}"] * 3
    store.close()
