"""Effects of unknown end, as a handler meets them.

Their end can become known at any time, so that no verdict is kept: the journal only says that the
handler met the effect and went on, and the ledger is asked in every run. There is one exception.
After the handler has begun another effect because of it, its path is fixed, and every run that goes
on along that path is shown what it saw (`Execution.once_more` takes back one that does not).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from antiphon.engine.effects.names import Known, Once, is_caller_known
from antiphon.engine.ends import Seen, seen_in
from antiphon.engine.execution import Execution
from antiphon.errors import EffectUncertain, StoreError
from antiphon.ports import Store
from antiphon.protocol.journal import Entry, encode_value

Leaving: TypeAlias = Callable[[], bool]
"""Returns whether the handler that wants an effect is being cancelled."""


async def check_doubt(execution: Execution, entry: Entry, spec: Once) -> Entry:
    """Return the entry of an effect that had an unknown end, if the ledger decides about it.

    Raises:
        EffectUncertain: The handler has acted after it, and sees it again.
    """
    seen = seen_in(entry)
    if not seen.acted:
        return entry
    error = EffectUncertain(seen.call, spec.key, guarded=is_caller_known(execution, spec))
    try:
        settled = not await _is_open(execution.environment.store, seen.call, spec.key)
    except StoreError as failure:
        raise execution.fault(failure) from None
    raise execution.doubt(error, entry, known=True, settled=settled)


async def _is_open(store: Store, call: str, key: str) -> bool:
    rows = await store.effects(call)
    return any(row.key == key and row.state in ("started", "uncertain") for row in rows)


async def perform_noting(
    execution: Execution,
    work: Callable[[Leaving], Awaitable[Known]],
    met_by: "asyncio.Task[Any] | None",
    doubt: Entry | None,
    leaving: Leaving,
) -> Known:
    """Do an effect; note that its end is unknown also where nobody waits for it any more."""
    try:
        return await work(leaving)
    except EffectUncertain as error:
        execution.doubt(error, doubt, known=doubt is not None, task=met_by)
        telemetry = execution.environment.telemetry
        if telemetry is not None:
            telemetry.uncertain(execution.handler.identity)
        raise


def keep_doubt(
    execution: Execution, error: EffectUncertain, entry: Entry | None, learned: Callable[..., Entry]
) -> None:
    """Keep in the journal that the handler meets an effect of unknown end."""
    if entry is None:
        payload = encode_value(Seen(error.call_id))
        entry = execution.record(learned(payload, outcome="uncertain"))
    doubt = execution.doubts[error.key]
    execution.doubts = {
        **execution.doubts,
        error.key: msgspec.structs.replace(doubt, entry=entry),
    }
