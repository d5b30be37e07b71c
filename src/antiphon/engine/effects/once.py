"""Effects and memos: what happens once, and what is computed once.

Owns what a replay returns or raises. Every outcome that the handler saw is an entry of the journal;
an outcome that the next try of the round should look at anew (`NotDone`) is only kept when
something was recorded after it, because only then a journal is written. That an effect has an
unknown end is no outcome: `doubts.py`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from antiphon.engine.effects.doubts import check_doubt, keep_doubt, perform_noting
from antiphon.engine.effects.names import Known, Once, effect_names, is_caller_known
from antiphon.engine.effects.performing import claimed, perform, shielded
from antiphon.engine.execution import Execution
from antiphon.engine.handler import call_to_end
from antiphon.engine.mistakes import check_secret
from antiphon.engine.outcome import ASLEEP
from antiphon.engine.questions import check_key
from antiphon.engine.serialization.arguments import arguments_digest
from antiphon.engine.serialization.codec import JsonCodec, codec_of, function_name
from antiphon.engine.serialization.recorded_errors import (
    RecordedError,
    dump_error,
    error_text,
    load_error,
)
from antiphon.errors import (
    EffectFailed,
    EffectUncertain,
    MemoFailed,
    NotDone,
    StateTooLarge,
    StoreError,
)
from antiphon.ports import Effect
from antiphon.protocol.digest import short_digest
from antiphon.protocol.journal import Entry, encode_value
from antiphon.seal.claims import encode_journal, largest

_CUT_MARGIN = 1.0
"""Seconds beyond the time of the first cancellation for which a replay waits for the same one."""


async def once(execution: Execution, spec: Once) -> Any:
    """Run an effect, or return or raise what was recorded of it."""
    await execution.enter_async("once")
    check_key(spec.key)
    name = function_name(spec.fn)
    arguments = arguments_digest(spec.fn, spec.args)
    digest = short_digest(name.encode(), arguments)
    codec = codec_of(spec.fn, spec.returns)
    entry = execution.recall("effect", spec.key, digest, name)
    doubt = None
    if entry is None:
        execution.check_new("effect", spec.key, name)
    elif entry.outcome == "uncertain":
        doubt = await check_doubt(execution, entry, spec)  # the ledger may know by now
    elif entry.outcome != "cut":
        return _seen(execution, entry, codec, spec)
    else:
        await _cut_again(entry)  # if nothing cuts it this time, the ledger knows how it ended
    if execution.handler.options.anchor:
        await _anchor(execution)
    _check_budget(execution)
    learned = partial(Entry, "effect", spec.key, digest=digest, note=name, retry=spec.retry)
    with _unclaimed(execution, spec.key):
        names = await effect_names(execution, spec, name, arguments)
        known = await _recorded(execution, spec, codec, names, learned, doubt)
    if doubt is not None:
        execution.go_on_settled(doubt)
    entry = learned(known.payload, outcome=known.outcome, reused=known.reused)
    return _seen(execution, execution.record(entry), codec, spec)


@contextlib.contextmanager
def _unclaimed(execution: Execution, key: str) -> Generator[None]:
    """Let a handler that returns know of an effect in a child task, until it is claimed."""
    branches = execution.branch()
    if branches is not None:
        branches.unclaimed[key] = asyncio.current_task()
    try:
        yield
    finally:
        claimed(execution, key)


async def _recorded(
    execution: Execution,
    spec: Once,
    codec: JsonCodec,
    names: Sequence[Effect],
    learned: Callable[..., Entry],
    doubt: Entry | None,
) -> Known:
    """Run an effect; whatever the handler sees instead of a result or a failure is recorded."""
    execution.act_on_doubts()
    try:
        leased = await execution.delivery.leased(execution)
        doing = partial(perform, execution, spec, codec, names, leased)
        work = partial(perform_noting, execution, doing, asyncio.current_task(), doubt)
        known = await shielded(execution, work, spec.on_cancel)
    except StoreError as error:
        raise execution.fault(error) from None
    except NotDone as error:
        if doubt is not None:
            execution.go_on_settled(doubt)
        execution.record(learned(dump_error(error), outcome="not-done"))
        raise
    except EffectUncertain as error:
        keep_doubt(execution, error, doubt, learned)
        raise
    except asyncio.CancelledError:
        if not execution.ending:
            execution.record(learned(_cut_payload(execution), outcome="cut"))
        raise
    if execution.state is ASLEEP:
        execution.enter("once")
    return known


def _seen(execution: Execution, entry: Entry, codec: JsonCodec, spec: Once) -> Any:
    """Return or raise what the handler saw of an effect."""
    if entry.outcome == "ok":
        return codec.load(entry.payload)
    if entry.outcome == "failed":
        raise EffectFailed(spec.key, entry.value(), guarded=is_caller_known(execution, spec))
    raise load_error(entry.payload) or NotDone(RecordedError.of(entry.payload).text)


async def _anchor(execution: Execution) -> None:
    """End round one before its first effect, so that the effect runs under a redeemed token."""
    if execution.call.number == 1 and execution.request.era == "modern":
        await execution.pause()


def _check_budget(execution: Execution) -> None:
    """Refuse a journal that is too large before anything is claimed."""
    environment = execution.environment
    if environment.spill or execution.request.era == "legacy" or execution.delivery.background:
        return
    journal, budget = execution.journal(), environment.limits.state_bytes
    size = len(encode_journal(journal))
    if size > budget:
        raise StateTooLarge(size, budget, largest(journal))


# --- cancellations as entries ---------------------------------------------------------


def _cut_payload(execution: Execution) -> bytes:
    """Remember how long after its beginning the handler cancelled the wait."""
    return encode_value(asyncio.get_running_loop().time() - execution.started)


async def _cut_again(entry: Entry) -> None:
    """Wait to be cancelled as in an earlier execution: by the same timeout, or a sibling's end.

    Returns when that has not happened in time: then it was the client that had gone away.
    """
    await asyncio.sleep(entry.value() + _CUT_MARGIN)


# --- memos ---------------------------------------------------------------------------------------


async def memo(
    execution: Execution,
    key: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    returns: Any = None,
    secret: bool = False,
) -> Any:
    """Compute a value once per call and keep it in the journal; keep an error, too."""
    await execution.enter_async("memo")
    check_key(key)
    name = function_name(fn)
    codec = codec_of(fn, returns)
    entry = execution.recall("memo", key, b"", name)
    if entry is None:
        execution.check_new("memo", key, name)
        entry = execution.take_kept(key)
    if entry is None:
        pass
    elif entry.outcome == "ok":
        return codec.load(entry.payload)
    elif entry.outcome == "failed":
        raise load_error(entry.payload) or MemoFailed(key, RecordedError.of(entry.payload).text)
    else:
        await _cut_again(entry)
    check_secret(execution, "memo", key, secret=secret)
    learned = partial(Entry, "memo", key, note=name, secret=secret)
    try:
        with execution.inside(key):
            value = await call_to_end(fn, args)
        payload, value = codec.keep(value, f"the result of memo {key!r}")
    except asyncio.CancelledError:
        if not execution.ending:
            execution.record(learned(_cut_payload(execution), outcome="cut"))
        raise
    except Exception as error:
        if execution.ending or execution.verdict is not None:
            raise
        payload = dump_error(error)
        execution.record(learned(payload, outcome="failed"))
        if load_error(payload) is None:
            raise MemoFailed(key, error_text(error)) from error
        raise
    execution.enter("memo")  # the round may have ended while it was computed
    execution.record(learned(payload))
    return value
