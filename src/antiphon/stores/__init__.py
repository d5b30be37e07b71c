"""Stores: where it is kept what happened once. Each file knows its driver, none the wire."""

from antiphon.stores.memory import MemoryStore

__all__ = ["MemoryStore"]
