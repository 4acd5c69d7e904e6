"""What every `Store` must do. A store joins by a `Rig` that opens it and breaks what it stands on; see `test_store_sqlite.py`, `test_store_memory.py`."""

from __future__ import annotations

from tests.services.store_damage import DamageContract
from tests.services.store_durability import DurabilityContract
from tests.services.store_records import RecordsContract
from tests.services.store_snapshots import SnapshotContract


class StoreContract(RecordsContract, DurabilityContract, DamageContract, SnapshotContract):
    """Subclass it in a test module with a fixture `rig`."""
