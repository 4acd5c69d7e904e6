"""Durable records. `SqliteStore` is the default; any other must pass `tests/services/store_contract.py`."""

from penstock.buffer.store._lock import is_written
from penstock.buffer.store._writer import Bounds
from penstock.buffer.store.protocol import Store
from penstock.buffer.store.sqlite import SqliteStore

__all__ = ["Bounds", "SqliteStore", "Store", "is_written"]
