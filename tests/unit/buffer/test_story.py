from __future__ import annotations

import re
from pathlib import Path

from penstock.buffer.compat.config import CompatConfig
from penstock.buffer.compat.service import CompatService
from penstock.buffer.service import BufferService
from penstock.buffer.store import SqliteStore
from penstock.buffer.story import tell


async def test_what_one_decision_did_is_told_in_the_order_in_which_it_came_about(tmp_path: Path) -> None:
    service = BufferService(SqliteStore(tmp_path / "store.sqlite"), expire_seconds=60.0, max_waiting=8)
    async with service.running():
        compat = CompatService(service, CompatConfig(group_size=2))
        # Both at once: the group is opened, filled and complete at the same moment.
        await compat.write(b'[{"uid": "a", "instance_id": "i", "messages": [], "reward": 1}, {"uid": "b", "instance_id": "i", "messages": [], "reward": 0}]')
        batch = await compat.reader.read(None)
        assert batch.items is not None
        told = [re.split(r"[ :]", event.what, maxsplit=1)[0] for event in tell(service.buffer, "default", "i/0").events]
        assert told == ["opened", "member", "member", "complete", "ready", "taken", "lease", "spent"]
        assert "with 1 group" in {event.what[-12:] for event in tell(service.buffer, "default", "i/0").events}
