"""Settling an effect in the store: recording its end, or freeing its claim.

An effect has happened when it is settled: a store that is out of reach for a moment must not make
its end uncertain. A try that failed may have been heard all the same; the next one then finds the
effect settled. With an audit it is written that an effect begins, and how it ended.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from antiphon.core.audit import RoundAudit
from antiphon.core.retry import back_off
from antiphon.engine.effects.names import Known
from antiphon.engine.execution import Execution
from antiphon.errors import NotDone, StoreError, StoreFull
from antiphon.ports import Begin, Effect, Started, Store

T = TypeVar("T")

_FIRST_PAUSE, _MOST_PAUSE = 0.05, 1.0


async def settle(
    execution: Execution, effect: Effect, fence: int, *, result: bytes | None, error: str | None
) -> bool:
    """Record the result or the failure; False if the lease is lost."""
    store, tries = execution.environment.store, 0

    async def record() -> bool:
        nonlocal tries
        tries += 1
        if await store.settle(effect.id, fence, result=result, error=error):
            return True
        return tries > 1 and await _is_settled(store, effect)

    return await until_reached(record, retry_seconds(execution))


async def abandon(execution: Execution, effect: Effect, fence: int) -> None:
    """Free the claim: nothing happened."""
    freeing = partial(execution.environment.store.abandon, effect.id, fence)
    try:
        await until_reached(freeing, retry_seconds(execution))
    except StoreError:
        later(execution, freeing)
        raise


async def free(store: Store, effect: Effect, claim: Callable[..., Awaitable[Begin]]) -> None:
    """Free a claim of which no reply came: nothing has run in its name."""
    rows = await store.effects(effect.call)
    if any(row.key == effect.key and row.settled is None for row in rows):
        # The round is no longer held. The nonce says whether the claim is ours.
        begin = await claim(under=None, retry=False)
        if isinstance(begin, Started):
            await store.abandon(effect.id, begin.fence)


def later(execution: Execution, operation: Callable[[], Awaitable[None]]) -> None:
    """Go on trying after the reply, for as long as the claim could still be in the way."""
    environment = execution.environment
    lease = environment.limits.lease.total_seconds()

    async def go_on() -> None:
        with contextlib.suppress(StoreError):
            await until_reached(operation, lease)

    task = asyncio.ensure_future(go_on())
    environment.background.add(task)
    task.add_done_callback(environment.background.discard)


async def _is_settled(store: Store, effect: Effect) -> bool:
    rows = await store.effects(effect.call)
    return any(row.key == effect.key and row.state in ("done", "failed") for row in rows)


def retry_seconds(execution: Execution) -> float:
    """Return for how many seconds a store that is out of reach is tried."""
    return execution.environment.limits.lease.total_seconds() / 3


async def until_reached(operation: Callable[[], Awaitable[T]], within: float) -> T:
    """Try until the store answers, for at most so many seconds; not what trying cannot mend."""
    for pause in back_off(_FIRST_PAUSE, _MOST_PAUSE, within=within):
        try:
            return await operation()
        except StoreFull:
            raise
        except StoreError as error:
            if not error.retryable:
                raise
        await asyncio.sleep(pause)
    return await operation()


async def perform_audited(
    audit: RoundAudit,
    execution: Execution,
    effect: Effect,
    fence: int,
    body: Callable[[], Coroutine[Any, Any, Known]],
    leaving: Callable[[], bool],
) -> Known:
    """Do a claimed effect between two records; without the first one it is not done.

    Nor is it where the round has ended while that was written.

    Raises:
        StoreError: A record cannot be written, and gaps are not allowed. After the effect this
            refuses the round; its next try finds the effect settled.
    """
    try:
        await audit.begin_effect(effect.key, effect.function)
    except BaseException:
        await abandon(execution, effect, fence)  # nothing has happened yet
        raise
    began = time.perf_counter()

    async def note(outcome: str) -> None:
        spent = round(time.perf_counter() - began, 6)
        await audit.end_effect(effect.key, effect.function, outcome, spent)

    if leaving():
        await abandon(execution, effect, fence)
        with contextlib.suppress(StoreError):
            await note("not-done")
        raise asyncio.CancelledError
    try:
        known = await body()
    except BaseException as error:
        with contextlib.suppress(StoreError):  # that it began is written
            await note("not-done" if isinstance(error, NotDone) else "uncertain")
        raise
    await note("done" if known.outcome == "ok" else known.outcome)
    return known
