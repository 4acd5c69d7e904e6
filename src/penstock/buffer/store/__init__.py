"""Durable records. `SqliteStore` is the default; any other must pass `tests/services/store_contract.py`."""

from penstock.buffer.store.protocol import Store

__all__ = ["Store"]
