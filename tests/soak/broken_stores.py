"""Stores that are broken on purpose: each breaks one promise, which the soak must notice."""

import sqlite3
from contextlib import closing
from typing import Any

from antiphon.ports import Claim
from antiphon.stores.sqlite import SqliteStore
from tests.soak.stores import StoreInTime

MINUTES = 300.0


class ExtendsNoLease(StoreInTime):
    """Says that a lease was renewed and leaves it as it was."""

    async def renew(self, *_: Any, **__: Any) -> bool:
        return True


class SweepsHeldRounds(StoreInTime):
    """Removes every round whose token has expired, also one that is being run."""

    async def claim(self, *args: Any, **options: Any) -> Claim:
        assert isinstance(self._store, SqliteStore)
        with closing(sqlite3.connect(self._store.path)) as connection, connection:
            connection.execute(
                "DELETE FROM antiphon_rounds WHERE expires < ?", (self._store._clock(),)
            )
        connection.close()
        return await self.real("claim")(*args, **options)


class ForgetsOutcomes(StoreInTime):
    """Keeps an outcome for half a minute only."""

    async def record(self, *args: Any, ttl: float, **options: Any) -> bool:
        return await self.real("record")(*args, ttl=min(ttl, 30.0), **options)


class KeepsWhatCallsLeave(StoreInTime):
    """Frees nothing when a call ends."""

    async def record(self, *args: Any, final: bool = False, **options: Any) -> bool:
        return await self.real("record")(*args, **options)

    async def end_call(self, *_: Any, **__: Any) -> None:
        return None


class RunsOnAnotherClock(StoreInTime):
    """Ends tokens by a clock that is minutes ahead."""

    async def claim(self, *args: Any, ttl: float, **options: Any) -> Claim:
        return await self.real("claim")(*args, ttl=ttl - MINUTES, **options)


class SettlesNothing(StoreInTime):
    """Tells an operator that an effect is settled, and leaves it as it was."""

    async def settle_uncertain(self, *_: Any, **__: Any) -> bool:
        return True
