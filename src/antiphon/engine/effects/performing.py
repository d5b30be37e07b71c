"""Doing an effect: its claim, its shielded body, and what came of it.

What the ledger says of an effect that somebody else has done is read here, too.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, TypeAlias

from antiphon.core.asks import seconds
from antiphon.core.failures import log_failure
from antiphon.core.journal import decode_value, encode_value
from antiphon.engine.effects.names import Known, Once, idempotency_key
from antiphon.engine.effects.settling import (
    abandon,
    free,
    later,
    perform_audited,
    retry_seconds,
    settle,
    until_reached,
)
from antiphon.engine.execution import Execution
from antiphon.engine.handler import call_to_end
from antiphon.engine.serialization.codec import JsonCodec
from antiphon.engine.serialization.recorded_errors import error_text
from antiphon.environment import effect_place
from antiphon.errors import Diverged, EffectUncertain, NotDone, OutcomeUnknown, StoreError
from antiphon.ports import (
    About,
    Begin,
    Busy,
    Effect,
    FailedEffect,
    Finished,
    LeasedRound,
    LeasedTaskRun,
    LeaseLost,
    Mismatch,
    Started,
    Uncertain,
)

log: logging.Logger = logging.getLogger("antiphon")

_Leased: TypeAlias = LeasedRound | LeasedTaskRun | None
Leaving: TypeAlias = Callable[[], bool]
"""Returns whether the handler that wants an effect is being cancelled."""

_RETRIES = (0.1, 0.5, 2.0)
"""Seconds between the tries of an effect with `retry=True`; then it has failed."""

_BUSY_POLL = 0.05
_NONCE_BYTES = 12
"""Of the name of one claim: it need only differ from other claims of the same effect."""


def claimed(execution: Execution, key: str) -> None:
    """Note that an effect of a child task is claimed."""
    if execution.branches is not None:
        execution.branches.unclaimed.pop(key, None)


async def perform(
    execution: Execution,
    spec: Once,
    codec: JsonCodec,
    names: Sequence[Effect],
    leased: _Leased,
    leaving: Leaving,
) -> Known:
    """Claim the effect and do it, or return what came of it before."""
    effect = names[0]
    while True:
        begin = await _begin(execution, spec, effect, leased, leaving)
        match begin:
            case Started(fence):
                if leaving():
                    # The round ended while the claim was made: nothing has happened yet.
                    await abandon(execution, effect, fence)
                    raise asyncio.CancelledError
                if len(names) > 1:
                    rest = partial(perform, execution, spec, codec, names[1:], None, leaving)
                    return await _under_next_name(execution, effect, fence, rest)
                claimed(execution, spec.key)
                return await _body(execution, spec, codec, effect, fence, leaving)
            case Uncertain(call):
                if spec.verify is None or leaving():
                    raise EffectUncertain(call or effect.call, spec.key)
                await _verify(execution, spec, spec.verify, codec, call or effect.call)
            case Finished():
                known = await _recalled(execution, spec, codec, effect, begin)
                if known is not None:
                    return known
            case _:
                return await _known(execution, spec, effect, begin)


async def _recalled(
    execution: Execution, spec: Once, codec: JsonCodec, effect: Effect, found: Finished
) -> Known | None:
    """Return the result of an effect that has happened before; None if it was taken back."""
    place = effect_place(found.call or effect.call, spec.key)
    payload = await execution.environment.reveal(found.result, place)
    if await _taken_back(execution, spec, codec, found, payload):
        return None
    audit = execution.request.audit
    if audit is not None:
        await audit.end_effect(spec.key, effect.function, "recalled", 0.0)
    return Known("ok", payload, reused=bool(found.call) and found.call != effect.call)


async def _taken_back(
    execution: Execution, spec: Once, codec: JsonCodec, found: Finished, payload: bytes
) -> bool:
    """Make an effect uncertain again whose result, by an operator's word, does not fit its type."""
    call = found.call or execution.call.id
    misfit = codec.misfit(payload)
    if not misfit:
        return False
    store = execution.environment.store
    if not await store.unsettle(call, spec.key, result=found.result):
        return False  # it was the function's own result: another release of the code kept it
    log.error(
        "the result that effect %r of call %s was settled with does not fit its declared type "
        "(%s), so that the effect is uncertain again: settle it with one that fits (antiphon calls "
        "settle STORE %s %s --done RESULT): %s",
        spec.key,
        call,
        misfit,
        call,
        spec.key,
        execution.handler.identity,
    )
    return True


async def _begin(
    execution: Execution, spec: Once, effect: Effect, leased: _Leased, leaving: Leaving
) -> Begin:
    """Claim the effect; wait while another holder runs it."""
    environment = execution.environment
    window = seconds(spec.window) if spec.window is not None else None
    execution.call.began_effect = True
    claim = partial(
        environment.store.begin,
        effect,
        lease=environment.limits.lease.total_seconds(),
        # The window starts when the effect settles, which is before the deadline.
        ttl=execution.call.deadline - environment.clock() + (window or 0.0),
        under=leased,
        retry=spec.retry,
        window=window,
        # Asking again after a lost reply is the same claim: nothing can have run in its name.
        nonce=environment.entropy(_NONCE_BYTES),
        about=About(execution.handler.name, execution.request.principal.owner),
    )
    while True:
        try:
            begin = await until_reached(claim, retry_seconds(execution))
        except StoreError:
            later(execution, partial(free, environment.store, effect, claim))
            raise
        if not isinstance(begin, Busy):
            return begin
        if leaving():
            raise asyncio.CancelledError
        await asyncio.sleep(_BUSY_POLL)


async def _verify(
    execution: Execution, spec: Once, verify: Callable[..., Any], codec: JsonCodec, call: str
) -> None:
    """Ask the author's function how an effect of unknown end has ended, and settle it so.

    Raises:
        EffectUncertain: It could not tell, or not within the time of a lease.
    """
    what, environment = f"the result of verify for effect {spec.key!r}", execution.environment
    try:
        async with asyncio.timeout(environment.limits.lease.total_seconds()):
            with execution.inside(spec.key):
                value = await call_to_end(verify, spec.args, _extra(verify, call, spec.key))
        data, _ = codec.keep(value, what)
    except NotDone:
        result = None
    except Exception as error:
        log_failure(
            log,
            error,
            "verify of effect %r of %s could not tell",
            spec.key,
            execution.handler.identity,
            private=execution.private_values(),
            expose=environment.expose_errors,
        )
        raise EffectUncertain(call, spec.key) from error
    else:
        result = await environment.protect(data, effect_place(call, spec.key))
    await environment.store.settle_uncertain(call, spec.key, result=result)


async def _known(execution: Execution, spec: Once, effect: Effect, begin: Begin) -> Known:
    """Turn what the ledger says of an effect that we do not run into what the journal keeps."""
    environment = execution.environment
    match begin:
        case FailedEffect(error):
            text = await environment.reveal_text(error, f"failure {effect.id}")
            return Known("failed", encode_value(text))
        case Mismatch(function):
            raise execution.fault(
                Diverged(
                    recorded=f"effect {spec.key!r} ({function})",
                    now=f"effect {spec.key!r} ({effect.function})",
                    cure="Give an effect with another function or other arguments a new key.",
                )
            )
        case LeaseLost():
            raise execution.abandon()
        case Started() | Finished() | Busy() | Uncertain():
            raise EffectUncertain(execution.call.id, spec.key)


async def shielded(
    execution: Execution,
    work: Callable[[Leaving], Coroutine[Any, Any, Known]],
    on_cancel: Callable[[], object] | None,
) -> Known:
    """Claim and settle an effect even when cancelled; deliver the cancellation after."""
    cancelled: asyncio.CancelledError | None = None
    task = asyncio.ensure_future(work(lambda: cancelled is not None or execution.ending))
    _note_running(execution, task)
    while not task.done():
        try:
            with _shield_from_anyio() if cancelled else contextlib.nullcontext():
                await asyncio.wait({task})
        except asyncio.CancelledError as error:
            if cancelled is None and on_cancel is not None:
                on_cancel()
            cancelled = cancelled or error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved: what happened is in the ledger
        raise cancelled
    return task.result()


def _note_running(execution: Execution, task: "asyncio.Task[Any]") -> None:
    """Let the execution wait for an effect at its end."""
    execution.effects = {*execution.effects, task}

    def ended(task: "asyncio.Task[Any]") -> None:
        execution.effects = execution.effects - {task}

    task.add_done_callback(ended)


def _shield_from_anyio() -> contextlib.AbstractContextManager[Any]:
    """Keep anyio's cancellations out, which it repeats until they are obeyed."""
    import anyio  # lazy import: only an effect that is cancelled needs it

    return anyio.CancelScope(shield=True)


async def _body(
    execution: Execution,
    spec: Once,
    codec: JsonCodec,
    effect: Effect,
    fence: int,
    leaving: Leaving,
) -> Known:
    """Do a claimed effect, in the audit of its round where there is one."""
    audit = execution.request.audit
    with _lease_renewed(execution, effect.id, fence):
        if audit is None:
            return await _done(execution, spec, codec, effect, fence)
        body = partial(_done, execution, spec, codec, effect, fence)
        return await perform_audited(audit, execution, effect, fence, body, leaving)


async def _done(
    execution: Execution, spec: Once, codec: JsonCodec, effect: Effect, fence: int
) -> Known:
    """Call the function and settle what came of it."""
    environment, what = execution.environment, f"the result of effect {spec.key!r}"
    try:
        value = await _attempts(execution, spec, effect.call)
        payload, _ = codec.keep(value, what)  # what cannot be read back is not settled as done
    except NotDone:
        await abandon(execution, effect, fence)
        raise
    except asyncio.CancelledError:
        raise  # the process is going down: the claim stays, and is uncertain
    except OutcomeUnknown as error:
        raise EffectUncertain(execution.call.id, spec.key) from error  # the claim stays as well
    except Exception as error:
        log_failure(
            log,
            error,
            "effect %r of %s failed",
            spec.key,
            execution.handler.identity,
            private=execution.private_values(),
            expose=environment.expose_errors,
        )
        text = error_text(error)
        kept = await environment.protect_text(text, f"failure {effect.id}")
        if not await settle(execution, effect, fence, result=None, error=kept):
            raise EffectUncertain(execution.call.id, spec.key) from error
        return Known("failed", encode_value(text))
    kept = await environment.protect(payload, effect_place(effect.call, spec.key))
    if not await settle(execution, effect, fence, result=kept, error=None):
        raise EffectUncertain(execution.call.id, spec.key)
    return Known("ok", payload)


async def _under_next_name(
    execution: Execution,
    effect: Effect,
    fence: int,
    rest: Callable[[], Coroutine[Any, Any, Known]],
) -> Known:
    """Claim the effect under its other names and do it; settle it under this one in the same way.

    What is not settled under this name is settled under the next, where everybody looks too.
    """
    environment = execution.environment
    with _lease_renewed(execution, effect.id, fence):
        try:
            known = await rest()
        except BaseException:
            await abandon(execution, effect, fence)
            raise
        if known.outcome == "ok":
            result = await environment.protect(known.payload, effect_place(effect.call, effect.key))
            await settle(execution, effect, fence, result=result, error=None)
        else:
            text = decode_value(known.payload)
            error = await environment.protect_text(text, f"failure {effect.id}")
            await settle(execution, effect, fence, result=None, error=error)
        return known


async def _attempts(execution: Execution, spec: Once, call: str) -> Any:
    kwargs = _extra(spec.fn, call, spec.key)
    for pause in (*_RETRIES, None):
        try:
            with execution.inside(spec.key):
                return await call_to_end(spec.fn, spec.args, kwargs)
        except (NotDone, OutcomeUnknown, asyncio.CancelledError):
            raise
        except Exception:
            if not spec.retry or pause is None:
                raise
            await asyncio.sleep(pause)
    return None


def _extra(fn: Callable[..., Any], call: str, key: str) -> dict[str, Any]:
    """Return the idempotency key for a function that takes one."""
    try:
        wanted = "idempotency_key" in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        wanted = False
    return {"idempotency_key": idempotency_key(call, key)} if wanted else {}


@contextlib.contextmanager
def _lease_renewed(execution: Execution, effect: str, fence: int) -> Generator[None]:
    """Renew an effect's lease while its body runs."""
    lease = execution.environment.limits.lease.total_seconds()
    store = execution.environment.store

    async def renew() -> None:
        while True:
            await asyncio.sleep(lease / 3)
            with contextlib.suppress(StoreError):  # it may be back before the lease ends
                await store.hold(effect, fence, lease=lease)

    task: asyncio.Task[None] | None = None

    def start() -> None:
        nonlocal task
        task = asyncio.ensure_future(renew())

    # Most effects end long before a third of the lease: only then is a task made.
    timer = asyncio.get_running_loop().call_later(lease / 3, start)
    try:
        yield
    finally:
        timer.cancel()
        if task is not None:
            task.cancel()
