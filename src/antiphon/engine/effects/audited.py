"""An effect in the audit of its round: it is written that it begins, and how it ended."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any

from antiphon.core.audit import RoundAudit
from antiphon.engine.effects.names import Known
from antiphon.engine.effects.settling import abandon
from antiphon.engine.execution import Execution
from antiphon.errors import NotDone, StoreError
from antiphon.ports import Effect


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
