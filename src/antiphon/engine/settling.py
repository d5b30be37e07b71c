"""Telling the store how an effect ended, also through an outage. Knows no handler.

An effect has happened when this is asked for: a store that is out of reach for a moment must not
make its end uncertain. A try that failed may have been heard all the same; the next one then finds
the effect settled.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from antiphon.errors import StoreError
from antiphon.ports import Effect, Store

_T = TypeVar("_T")
_FIRST_PAUSE, _MOST_PAUSE = 0.05, 1.0


async def settle(
    store: Store,
    effect: Effect,
    fence: int,
    *,
    result: bytes | None,
    error: str | None,
    patience: float,
) -> bool:
    """Record the result or the failure; False if the fence is lost."""
    tries = 0

    async def once() -> bool:
        nonlocal tries
        tries += 1
        if await store.settle(effect.id, fence, result=result, error=error):
            return True
        return tries > 1 and await _is_settled(store, effect)

    return await _patiently(once, patience)


async def abandon(store: Store, effect: Effect, fence: int, *, patience: float) -> None:
    """Free the claim: nothing happened."""
    await _patiently(lambda: store.abandon(effect.id, fence), patience)


async def _is_settled(store: Store, effect: Effect) -> bool:
    rows = await store.effects(effect.call)
    return any(row.key == effect.key and row.state in ("done", "failed") for row in rows)


async def _patiently(duty: Callable[[], Awaitable[_T]], patience: float) -> _T:
    """Try until the store answers, for at most so many seconds."""
    pause, spent = _FIRST_PAUSE, 0.0
    while True:
        try:
            return await duty()
        except StoreError:
            if spent >= patience:
                raise
        await asyncio.sleep(pause)
        spent += pause
        pause = min(pause * 2, _MOST_PAUSE)
