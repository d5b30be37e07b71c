"""Engines that are broken on purpose, to show that the random programs notice.

Each is broken at the public interface or at the store's port, so that it is broken in the same way
however the engine is built inside.
"""

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from antiphon import Context
from antiphon.ports import Store


@contextmanager
def handing_out_kept_objects() -> Iterator[Counter[str]]:
    """Give a handler the very object that it got before, with what it did to it."""
    kept: dict[tuple[str, str, str], Any] = {}
    handed: Counter[str] = Counter()

    def broken(method: str) -> Any:
        original = getattr(Context, method)

        def give(self: Context, what: Any, *args: Any, key: str = "", **options: Any) -> Any:
            asked = {"key": key} if key else {}

            async def value() -> Any:
                name = (self.call_id, method, key or what)
                fresh = await original(self, what, *args, **asked, **options)
                handed["again" if name in kept else "first"] += 1
                return kept.setdefault(name, fresh)

            return value()

        return give

    methods = {name: broken(name) for name in ("elicit", "sample", "memo", "once")}
    with patch.multiple(Context, **methods):
        yield handed


class _Between:
    """A store that changes what one operation does."""

    def __init__(self, store: Store, breaking: "Breaking") -> None:
        self._store = store
        self._breaking = breaking
        self.durable = store.durable
        self.shared = store.shared

    def for_server(self, server: str) -> Any:
        self._store = self._store.for_server(server)
        return self

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        if not inspect.iscoroutinefunction(operation):
            return operation

        async def changed(*args: Any, **options: Any) -> Any:
            return await self._breaking.operation(self._store, name, args, options)

        return changed


class Breaking:
    """Stands between servers and their store."""

    def __init__(self) -> None:
        self.count = 0

    def store(self, store: Store) -> Any:
        """Return the store as broken servers see it."""
        return _Between(store, self)

    async def operation(self, store: Any, name: str, args: Any, options: dict[str, Any]) -> Any:
        """Do an operation of the store, or something else."""
        return await getattr(store, name)(*args, **options)


class Forgetting(Breaking):
    """Frees an effect that failed, as if nothing had happened."""

    async def operation(self, store: Any, name: str, args: Any, options: dict[str, Any]) -> Any:
        if name == "settle" and options.get("error") is not None:
            self.count += 1
            await store.abandon(*args[:2])
            return True
        return await super().operation(store, name, args, options)


class Repeating(Breaking):
    """Runs an effect of unknown end again."""

    async def operation(self, store: Any, name: str, args: Any, options: dict[str, Any]) -> Any:
        if name == "begin":
            self.count += 1
            options = {**options, "retry": True}
        return await super().operation(store, name, args, options)


@contextmanager
def forgetting_failures() -> Iterator[Forgetting]:
    """Remember what memos and effects gave, but not that they failed."""
    forgetting = Forgetting()
    memo = Context.memo

    def broken_memo(self: Context, key: str, fn: Any, *args: Any, **options: Any) -> Any:
        async def value() -> Any:
            try:
                result = await fn(*args)
            except Exception:
                forgetting.count += 1
                raise
            return await memo(self, key, lambda: result, **options)

        return value()

    with patch.object(Context, "memo", broken_memo):
        yield forgetting
