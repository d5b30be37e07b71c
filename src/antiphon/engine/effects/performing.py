"""Doing an effect: its claim, its shielded body, and what came of it.

What the ledger says of an effect that somebody else has done is read here, too.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import msgspec

from antiphon.engine.child_tasks import UserCodeExit
from antiphon.engine.effects.lease import EffectLease, GuardedBody, Overtaken
from antiphon.engine.effects.names import Known, Once, is_caller_known, sealed_arguments
from antiphon.engine.effects.settling import (
    abandon,
    free_later,
    perform_audited,
    retry_seconds,
    settle,
    until_reached,
    wait_until_settled,
)
from antiphon.engine.effects.trying import (
    Ended,
    Returned,
    did_nothing,
    extra_arguments,
    try_effect,
)
from antiphon.engine.environment import NotWrittenYet, effect_place
from antiphon.engine.execution import Execution
from antiphon.engine.handler import call_to_end
from antiphon.engine.serialization.codec import JsonCodec
from antiphon.engine.serialization.recorded_errors import error_text
from antiphon.errors import (
    Diverged,
    EffectUncertain,
    NotDone,
    StoreError,
    UncertainReason,
)
from antiphon.ports import (
    About,
    Begin,
    Busy,
    Effect,
    FailedEffect,
    Finished,
    Incarnations,
    InEqualCall,
    LeasedRound,
    LeasedTaskRun,
    LeaseLost,
    Mismatch,
    Started,
    Uncertain,
)
from antiphon.protocol.asks import seconds
from antiphon.protocol.effect_ends import FAILED, NOT_DONE, REFUSED
from antiphon.protocol.failures import log_failure
from antiphon.protocol.journal import decode_value, encode_value

log: logging.Logger = logging.getLogger("antiphon")

_Leased: TypeAlias = LeasedRound | LeasedTaskRun | None
Leaving: TypeAlias = Callable[[], bool]
"""Returns whether the handler that wants an effect is being cancelled."""

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
    effect, waited, held = names[0], 0.0, False
    known: Known | None = None
    while known is None:
        begin = await _begin(execution, spec, effect, leased, leaving, held=held)
        match begin:
            case Started(fence):
                held = True
                names = [effect, *names[1:]]
                known = await _begun(execution, spec, codec, names, fence, leaving)
            case Uncertain(call):
                if spec.verify is None or leaving():
                    raise uncertain(execution, spec, call or effect.call)
                await _verify(execution, spec, spec.verify, codec, call or effect.call)
            case Finished():
                known = await _recalled(execution, spec, codec, effect, begin)
            case InEqualCall(state="running"):
                waited = await _wait_for_equal(execution, spec, begin, waited, leaving)
            case InEqualCall():
                found = await _in_equal_call(execution, spec, codec, effect, begin)
                if isinstance(found, Known):
                    return found
                effect = found
            case _:
                known = await _known(execution, spec, effect, begin)
    return known


async def _begun(
    execution: Execution,
    spec: Once,
    codec: JsonCodec,
    names: Sequence[Effect],
    fence: int,
    leaving: Leaving,
) -> Known | None:
    """Do an effect that is claimed under the first of its names.

    Returns None when somebody else decides about it by now, and is to be asked.
    """
    effect = names[0]
    if leaving():
        # The round ended while the claim was made: nothing has happened yet.
        await abandon(execution, effect, fence)
        raise asyncio.CancelledError
    if len(names) > 1:
        rest = partial(perform, execution, spec, codec, names[1:], None, leaving)
        return await _under_next_name(execution, effect, fence, rest)
    claimed(execution, spec.key)
    try:
        return await _body(execution, spec, codec, effect, fence, leaving)
    except Overtaken:
        if leaving():
            raise
        return None


async def _wait_for_equal(
    execution: Execution, spec: Once, found: InEqualCall, waited: float, leaving: Leaving
) -> float:
    """Wait a moment for an equal call that runs the effect; for the time of a lease in all.

    Raises:
        EffectUncertain: It still runs it.
    """
    if leaving():
        raise asyncio.CancelledError
    if waited >= execution.environment.limits.lease.total_seconds():
        raise uncertain(execution, spec, found.call, "running")
    await asyncio.sleep(_BUSY_POLL)
    return waited + _BUSY_POLL


async def _in_equal_call(
    execution: Execution, spec: Once, codec: JsonCodec, effect: Effect, found: InEqualCall
) -> Known | Effect:
    """Return what an equal call of the same caller knows of an effect, or the effect to look at.

    Its author's `verify` and `retry` count for the effect of the other call as for this one, if it
    is called with the same arguments there: under its name, with its idempotency key.

    Raises:
        EffectUncertain: It may have happened, and nobody has said so far whether it did.
    """
    environment = execution.environment
    if found.state == "done":
        execution.call.share(found.call)
        result = Finished(found.result or b"", found.call)
        return await _recalled(execution, spec, codec, effect, result) or effect
    same = effect.equal is not None and found.inputs == effect.equal.inputs
    if same and spec.verify is not None:
        await _verify(execution, spec, spec.verify, codec, found.call)
        return effect
    if found.state == "failed":
        text = await environment.reveal_text(found.error or "", f"failure {found.id}")
        return Known("failed", encode_value(text))
    if not same or not spec.retry:
        raise uncertain(execution, spec, found.call)
    execution.call.share(found.call)
    return msgspec.structs.replace(
        effect,
        id=found.id,
        call=found.call,
        arguments=found.arguments,
        restart=None,
        shown=await sealed_arguments(execution, spec, found.call),
    )


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
    execution: Execution,
    spec: Once,
    effect: Effect,
    leased: _Leased,
    leaving: Leaving,
    *,
    held: bool,
) -> Begin:
    """Claim the effect; wait while another holder runs it, or may be about to write its end.

    Where this run has held it before, there is no other holder to wait for.
    """
    await wait_until_settled(execution, effect)
    environment = execution.environment
    window = seconds(spec.window) if spec.window is not None else None
    execution.call.began_effect = True
    # The window starts when the effect settles, which is before the deadline.
    ttl = execution.call.deadline - environment.clock() + (window or 0.0)
    claim = partial(
        _claim,
        execution,
        effect,
        lease=environment.limits.lease.total_seconds(),
        ttl=ttl,
        under=leased,
        retry=spec.retry,
        window=window,
        # Asking again after a lost reply is the same claim: nothing can have run in its name.
        nonce=environment.entropy(_NONCE_BYTES),
        about=About(execution.handler.name, execution.request.principal.owner),
    )
    waited = 0.0
    while True:
        try:
            begin = await until_reached(execution, claim)
        except StoreError:
            free_later(execution, effect, claim)
            raise
        if not held and _is_unclear(begin) and environment.was_store_away:
            waited += _BUSY_POLL
        elif not isinstance(begin, Busy):
            return begin
        if leaving():
            raise asyncio.CancelledError
        if waited > retry_seconds(execution):
            raise NotWrittenYet(
                f"the end of effect {effect.key!r} may be known to a process that could not write "
                "it while the store was away"
            )
        await asyncio.sleep(_BUSY_POLL)


def _is_unclear(begin: Begin) -> bool:
    """Tell whether the lease of the holder has ended without a result."""
    return isinstance(begin, Uncertain) or (
        isinstance(begin, InEqualCall) and begin.state == "uncertain"
    )


async def _claim(
    execution: Execution, effect: Effect, *, ttl: float, retry: bool, about: About, **options: Any
) -> Begin:
    """Claim an effect; one that the store may have forgotten is uncertain instead of free."""
    call, store = execution.call, execution.environment.store
    now = execution.environment.incarnation
    may_be_lost = bool(now and call.incarnation) and call.incarnation != now and not retry
    if may_be_lost and await cast("Incarnations", store).mark_lost(effect, ttl=ttl, about=about):
        log.error(
            "the store was restored, or failed over without its last writes, since call %s asked: "
            "effect %r may have happened before. List such effects with `antiphon calls lost`: %s",
            call.id,
            effect.key,
            execution.handler.identity,
        )
    return await store.begin(effect, ttl=ttl, retry=retry, about=about, **options)


async def _verify(
    execution: Execution, spec: Once, verify: Callable[..., Any], codec: JsonCodec, call: str
) -> None:
    """Ask the author's function how an effect of unknown end has ended, and settle it so.

    Raises:
        EffectUncertain: It could not tell, or not within the time of a lease.
    """
    environment = execution.environment
    try:
        found = await _ask_verify(execution, spec, verify, codec, call)
    except Exception as error:
        raise uncertain(execution, spec, call) from error
    result = None
    if found is not None:
        result = await environment.protect(found, effect_place(call, spec.key))
    await environment.store.settle_uncertain(call, spec.key, result=result)


async def _ask_verify(
    execution: Execution, spec: Once, verify: Callable[..., Any], codec: JsonCodec, call: str
) -> bytes | None:
    """Return the result of an effect that has happened; None if it has not.

    Raises:
        Exception: The author's function could not tell, or not within the time of a lease.
    """
    what, environment = f"the result of verify for effect {spec.key!r}", execution.environment
    try:
        async with asyncio.timeout(environment.limits.lease.total_seconds()):
            with execution.inside(spec.key):
                arguments = extra_arguments(verify, call, spec.key)
                value = await call_to_end(verify, spec.args, arguments)
        return codec.keep(value, what)[0]
    except NotDone:
        return None
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
        raise


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
        case Started() | Finished() | Busy() | Uncertain() | InEqualCall():
            raise uncertain(execution, spec, effect.call)


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
    lease = EffectLease(execution, effect.id, fence)
    body = partial(_done, execution, spec, codec, effect, fence, lease, leaving)
    with lease.renewed():
        if audit is None:
            return await body()
        return await perform_audited(audit, execution, effect, fence, body, leaving)


async def _done(
    execution: Execution,
    spec: Once,
    codec: JsonCodec,
    effect: Effect,
    fence: int,
    lease: EffectLease,
    leaving: Leaving,
) -> Known:
    """Call the function and settle what came of it."""
    tried = await _tried_while_ours(execution, spec, codec, effect.call, lease)
    if isinstance(tried, Ended):
        return await _ended_badly(execution, spec, codec, effect, fence, tried)
    return await _settled(execution, spec, effect, fence, tried, lost=leaving())


async def _tried_while_ours(
    execution: Execution, spec: Once, codec: JsonCodec, call: str, lease: EffectLease
) -> Returned | Ended:
    """Call the function, for as long as the effect is ours.

    Raises:
        Overtaken: It was stopped: another process has taken the effect over, or may have.
    """
    trying, verified = try_effect(execution, spec, codec, call), spec.verify is not None
    cause: BaseException
    try:
        tried: Returned | Ended = await GuardedBody(trying, lease, verified=verified)
    except BaseException as error:
        if not lease.lost:
            raise
        cause = error
    else:
        if not lease.lost or isinstance(tried, Returned):
            return tried
        cause = tried.error
    log.error(
        "effect %r of call %s was stopped: this process was cut off for longer than its lease, and "
        "others decide about the effect: %s",
        spec.key,
        call,
        execution.handler.identity,
    )
    raise Overtaken(execution.call.id, spec.key) from cause


async def _settled(
    execution: Execution, spec: Once, effect: Effect, fence: int, found: Returned, *, lost: bool
) -> Known:
    """Record the result of an effect."""
    kept = await execution.environment.protect(found.payload, effect_place(effect.call, spec.key))
    # A task tells its caller whatever happens; and who shares an effect finds it by its name.
    told = execution.delivery.background or spec.scope != "call"
    doubted = found.doubted and spec.scope == "call"
    if not await settle(
        execution, effect, fence, result=kept, error=None, told=told, lost=lost, doubted=doubted
    ):
        raise uncertain(execution, spec, effect.call)
    return Known("ok", found.payload)


async def _ended_badly(
    execution: Execution,
    spec: Once,
    codec: JsonCodec,
    effect: Effect,
    fence: int,
    ended: Ended,
) -> Known:
    """Find out what an exception means, and settle or free the effect, or leave it uncertain.

    Raises:
        NotDone: Nothing happened.
        EffectUncertain: It may have happened.
    """
    if did_nothing(ended):
        await abandon(execution, effect, fence)
        raise ended.error
    if ended.end is not REFUSED:
        _log_end(execution, spec, ended.error)
    if spec.verify is not None:
        known = await _verified_at_once(execution, spec, spec.verify, codec, effect, fence, ended)
        if known is not None:
            return known
    if ended.end is REFUSED or ended.ran or (ended.end is FAILED and not spec.retry):
        return await _failed(execution, spec, effect, fence, ended)
    if ended.end is NOT_DONE:
        await abandon(execution, effect, fence)
        raise NotDone(_unreached(spec, ended.error)) from ended.error
    await _declare(execution, effect, fence)
    raise _unclear(execution, spec, effect, ended.error) from ended.error


async def _verified_at_once(
    execution: Execution,
    spec: Once,
    verify: Callable[..., Any],
    codec: JsonCodec,
    effect: Effect,
    fence: int,
    ended: Ended,
) -> Known | None:
    """Ask the author's function whether an effect that raised has happened.

    Returns its result; None if it has not and the author refused.

    Raises:
        NotDone: It has not happened.
        EffectUncertain: It could not tell.
    """
    try:
        found = await _ask_verify(execution, spec, verify, codec, effect.call)
    except Exception as error:
        await _declare(execution, effect, fence)
        raise _unclear(execution, spec, effect, ended.error) from error
    if found is not None:
        verified = Returned(found, doubted=True)
        return await _settled(execution, spec, effect, fence, verified, lost=False)
    if ended.end is REFUSED:
        return None
    await abandon(execution, effect, fence)
    raise NotDone(
        f"Effect {spec.key!r} did not happen: it ended with an error, and the server has checked. "
        "It may be tried again."
    ) from ended.error


def _log_end(execution: Execution, spec: Once, error: Exception) -> None:
    log_failure(
        log,
        error,
        "effect %r of %s failed",
        spec.key,
        execution.handler.identity,
        private=execution.private_values(),
        expose=execution.environment.expose_errors,
    )


async def _failed(
    execution: Execution, spec: Once, effect: Effect, fence: int, ended: Ended
) -> Known:
    """Record a failure. Only a refusal leaves equal calls free."""
    text = error_text(ended.error)
    kept = await execution.environment.protect_text(text, f"failure {effect.id}")
    told = ended.end is REFUSED
    if not await settle(execution, effect, fence, result=None, error=kept, told=told):
        raise uncertain(execution, spec, effect.call) from ended.error
    return Known("failed", encode_value(text))


async def _declare(execution: Execution, effect: Effect, fence: int) -> None:
    """Give the claim up: the effect is uncertain from now on, and not when its lease ends."""
    with contextlib.suppress(StoreError):
        await execution.environment.store.hold(effect.id, fence, lease=0.0)


def _unreached(spec: Once, error: Exception) -> str:
    return (
        f"Effect {spec.key!r} did not happen: the other side could not be reached "
        f"({type(error).__name__}). It may be tried again."
    )


def _unclear(execution: Execution, spec: Once, effect: Effect, error: Exception) -> EffectUncertain:
    """Return what to raise of an effect that may have happened."""
    raised = error.__cause__ if isinstance(error, UserCodeExit) else error
    return uncertain(execution, spec, effect.call, "raised", type(raised).__name__)


def uncertain(
    execution: Execution,
    spec: Once,
    call: str,
    reason: UncertainReason = "crashed",
    detail: str = "",
) -> EffectUncertain:
    """Return what to raise of an effect of unknown end; say in the log what is not protected."""
    guarded = is_caller_known(execution, spec)
    if not guarded:
        log.warning(
            "effect %r of %s may have happened, and nothing keeps a second call from doing it "
            "again: callers over HTTP are not authenticated. Authenticate them, or give "
            "restart_key= or scope_key=.",
            spec.key,
            execution.handler.identity,
        )
    return EffectUncertain(call, spec.key, reason=reason, detail=detail, guarded=guarded)


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
    with EffectLease(execution, effect.id, fence).renewed():
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
