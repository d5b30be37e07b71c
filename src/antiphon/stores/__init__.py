"""Stores: where it is kept what happened once. Each file knows its driver, none the wire."""

from antiphon.stores.memory import MemoryStore
from antiphon.stores.url import open_store

__all__ = ["MemoryStore", "open_store"]
