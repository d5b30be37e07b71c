"""From `store=` to a store. Owns the spelling of URLs; loads a driver only when it is named."""

import time
from importlib import import_module
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from antiphon.errors import ConfigError
from antiphon.ports import Clock, Store
from antiphon.stores.memory import MemoryStore

_KNOWN = "memory:, sqlite:///file, postgresql://..., redis://..."


def open_store(store: "str | Store | None", *, clock: Clock = time.time) -> Store:
    """Make the store that a URL names; a store is given back as it is. Nothing is connected yet.

    Args:
        store: A URL, a store, or None for memory.
        clock: For a store in memory; it must be the clock by which tokens expire.

    Raises:
        ConfigError: The URL names no store, or the extra that it needs is not installed.
    """
    if store is None:
        return MemoryStore(clock=clock)
    if not isinstance(store, str):
        if not hasattr(store, "durable"):
            what = type(store).__name__
            raise ConfigError(f"store= takes a URL or a store, not a {what}. URLs: {_KNOWN}")
        return store
    scheme = urlsplit(store).scheme
    match scheme:
        case "memory":
            return MemoryStore(clock=clock)
        case "sqlite":
            return _load("sqlite", "SqliteStore", "")(_path(store))
        case "postgresql" | "postgres":
            return _load("postgres", "PostgresStore", "antiphon[postgres]")(store)
        case "redis" | "rediss":
            return _load("redis", "RedisStore", "antiphon[redis]")(store)
        case _:
            # Without the rest: a URL may carry a password.
            if not scheme:
                raise ConfigError(f"store= is no URL: it has no scheme. Known: {_KNOWN}")
            raise ConfigError(f"store URL scheme {scheme!r} is not known. Known: {_KNOWN}")


def _path(url: str) -> str:
    path = url.removeprefix("sqlite:///")
    if path == url or not path or "?" in path:
        raise ConfigError(
            "a SQLite store is written sqlite:///relative/path.db or sqlite:////absolute/path.db"
        )
    if path.endswith(("/", "\\")) or Path(path).name in ("", ".", "..") or Path(path).is_dir():
        name = Path(path) / "antiphon.db"
        raise ConfigError(f"{url} names a folder. Name a file in it: sqlite:///{name}")
    return path


def _load(module: str, name: str, extra: str) -> "type[_Named]":
    """Import a store with its driver."""
    try:
        return cast("type[_Named]", getattr(import_module(f"antiphon.stores.{module}"), name))
    except ImportError as error:
        if (error.name or "").startswith("antiphon"):
            raise
        raise ConfigError(
            f'the store {module!r} needs a driver that is not installed: pip install "{extra}"'
        ) from error


class _Named(Store):
    """A store made from one string."""

    def __init__(self, where: str) -> None: ...
