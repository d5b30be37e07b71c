"""Claiming an effect and telling the store how it ended, also through an outage.

An effect has happened when this is asked for: a store that is out of reach for a moment must not
make its end uncertain. A try that failed may have been heard all the same; the next one then finds
the effect settled.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from antiphon.core.retry import back_off
from antiphon.errors import StoreError, StoreFull
from antiphon.ports import Begin, Effect, Store

_T = TypeVar("_T")
_FIRST_PAUSE, _MOST_PAUSE = 0.05, 1.0


async def begin(claim: Callable[[], Awaitable[Begin]], *, patience: float) -> Begin:
    """Claim an effect; a reply that was lost is asked for again.

    The claim names itself by a nonce, so that asking again is the same claim: nobody else can
    have begun the effect in its name, and the process knows that nothing has run.
    """
    return await _patiently(claim, patience)


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


async def _patiently(operation: Callable[[], Awaitable[_T]], patience: float) -> _T:
    """Try until the store answers, for at most so many seconds; not what trying cannot mend."""
    for pause in back_off(_FIRST_PAUSE, _MOST_PAUSE, within=patience):
        try:
            return await operation()
        except StoreFull:
            raise
        except StoreError as error:
            if not error.retryable:
                raise
        await asyncio.sleep(pause)
    return await operation()
