"""Settling an effect in the store: recording its end, or freeing its claim.

An effect has happened when it is settled: a store that is out of reach, read-only or full must not
make its end uncertain. So the process that knows the end goes on writing it until the deadline of
the call; until then the effect is neither uncertain nor done here, and its rounds are told to come
again. A try that failed may have been heard all the same; the next one then finds the effect
settled. With an audit it is written that an effect begins, and how it ended.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from antiphon.engine.effects.names import Known
from antiphon.engine.environment import NotWrittenYet
from antiphon.engine.execution import Execution
from antiphon.errors import NotDone, StoreError, StoreFull
from antiphon.ports import Begin, Effect, Started, Store
from antiphon.protocol.audit import RoundAudit
from antiphon.protocol.retry import back_off

T = TypeVar("T")

log: logging.Logger = logging.getLogger("antiphon")

_FIRST_PAUSE, _MOST_PAUSE = 0.05, 1.0

_ENDED = "its end is known"
_DID_NOTHING = "nothing happened"
_NEVER_BEGAN = "it was never begun"


async def settle(
    execution: Execution,
    effect: Effect,
    fence: int,
    *,
    result: bytes | None,
    error: str | None,
    told: bool = False,
    lost: bool = False,
    doubted: bool = False,
) -> bool:
    """Record the result or the failure; False if the lease is lost.

    `told`, `lost` and `doubted` say what equal calls of the caller may do (`Effects.settle`).
    """
    store, tries = execution.environment.store, 0

    async def record() -> bool:
        nonlocal tries
        tries += 1
        if await store.settle(
            effect.id, fence, result=result, error=error, told=told, lost=lost, doubted=doubted
        ):
            return True
        return tries > 1 and await _is_settled(store, effect)

    try:
        return await until_reached(execution, record)
    except StoreError as refusal:
        _log_trouble(execution, effect, _ENDED, refusal)
        _write_later(execution, effect, record, _ENDED, fence)
        raise


def _write_later(
    execution: Execution,
    effect: Effect,
    write: Callable[[], Awaitable[object]],
    known: str,
    fence: int | None = None,
) -> None:
    """Write what is known of an effect after the reply, until the store has taken it.

    Args:
        execution: The run in which the effect ended.
        effect: What it is about.
        write: Tells the store; returns False where another process has decided meanwhile.
        known: What this process knows, for the log.
        fence: Of the claim, which is renewed meanwhile; None where it is not known.
    """
    environment = execution.environment
    lease = environment.limits.lease.total_seconds()
    until = max(execution.call.deadline, environment.clock() + lease)
    name = f"effect {effect.key!r} of call {effect.call}"

    async def go_on() -> None:
        for pause in back_off(_FIRST_PAUSE, _MOST_PAUSE):
            await asyncio.sleep(pause)
            with contextlib.suppress(StoreError):
                if await write() is False:
                    log.error(
                        "%s: %s, but another process or an operator has decided about it before "
                        "the store could record that: %s",
                        name,
                        known,
                        execution.handler.identity,
                    )
                return
            if environment.clock() >= until:
                break
            if fence is not None:
                with contextlib.suppress(StoreError):
                    await environment.store.hold(effect.id, fence, lease=lease)
        log.error(
            "%s: %s, but the store could not record that before the call's deadline: %s",
            name,
            known,
            execution.handler.identity,
        )

    task = asyncio.get_running_loop().create_task(go_on(), name=name)
    environment.unsettled[effect.id] = task

    def ended(task: "asyncio.Task[None]") -> None:
        if environment.unsettled.get(effect.id) is task:
            del environment.unsettled[effect.id]

    task.add_done_callback(ended)


def _log_trouble(execution: Execution, effect: Effect, known: str, refusal: StoreError) -> None:
    log.warning(
        "effect %r of call %s: %s, but the store could not record that yet (%s). This process "
        "keeps trying: %s",
        effect.key,
        effect.call,
        known,
        refusal,
        execution.handler.identity,
    )


async def wait_until_settled(execution: Execution, effect: Effect) -> None:
    """Wait for an effect whose end this process knows and has not written yet.

    Raises:
        NotWrittenYet: The store still cannot take it; the round may be tried again.
    """
    settling = execution.environment.unsettled.get(effect.id)
    if settling is None:
        return
    await asyncio.wait({settling}, timeout=retry_seconds(execution))
    if not settling.done():
        raise NotWrittenYet(
            f"the end of effect {effect.key!r} is known and could not be written yet"
        )


async def abandon(execution: Execution, effect: Effect, fence: int) -> None:
    """Free the claim: nothing happened."""
    freeing = partial(execution.environment.store.abandon, effect.id, fence)
    try:
        await until_reached(execution, freeing)
    except StoreError as refusal:
        _log_trouble(execution, effect, _DID_NOTHING, refusal)
        _write_later(execution, effect, freeing, _DID_NOTHING, fence)
        raise


def free_later(
    execution: Execution,
    effect: Effect,
    claim: Callable[..., Awaitable[Begin]],
) -> None:
    """Free a claim of which no reply came: nothing has run in its name."""
    store = execution.environment.store

    async def free() -> None:
        rows = await store.effects(effect.call)
        if any(row.key == effect.key and row.settled is None for row in rows):
            # The round is no longer held. The nonce says whether the claim is ours.
            begin = await claim(under=None, retry=False)
            if isinstance(begin, Started):
                await store.abandon(effect.id, begin.fence)

    _write_later(execution, effect, free, _NEVER_BEGAN)


async def _is_settled(store: Store, effect: Effect) -> bool:
    rows = await store.effects(effect.call)
    return any(row.key == effect.key and row.state in ("done", "failed") for row in rows)


def retry_seconds(execution: Execution) -> float:
    """Return for how many seconds a store that is out of reach is tried."""
    return execution.environment.limits.lease.total_seconds() / 3


async def until_reached(execution: Execution, operation: Callable[[], Awaitable[T]]) -> T:
    """Try until the store answers, for a part of a lease; not what trying cannot mend."""
    for pause in back_off(_FIRST_PAUSE, _MOST_PAUSE, within=retry_seconds(execution)):
        try:
            return await operation()
        except StoreError as error:
            execution.environment.trouble.note()
            if isinstance(error, StoreFull) or not error.retryable:
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
