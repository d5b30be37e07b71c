"""Effects and memos: what happens once, and what is computed once.

Owns the claim of an effect, its shielded body, how its end is settled in the store, and what a
replay returns or raises. Every outcome that the handler saw is an entry of the journal; an outcome
that the next try of the round should look at anew (`NotDone`, `EffectUncertain`) is only kept when
something was recorded after it, because only then a journal is written.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from antiphon.core.asks import Seconds, seconds
from antiphon.core.digest import canonical, short_digest
from antiphon.core.failures import log_failure
from antiphon.core.journal import Entry, EntryOutcome, decode_value, encode_value
from antiphon.core.retry import back_off
from antiphon.engine.execution import ASLEEP, Execution
from antiphon.engine.handler import call_to_end
from antiphon.engine.mistakes import check_secret
from antiphon.engine.questions import check_key
from antiphon.engine.restarts import restartable
from antiphon.engine.serialization import (
    JsonCodec,
    RecordedError,
    arguments_digest,
    codec_of,
    dump_error,
    error_text,
    function_name,
    load_error,
)
from antiphon.engine.suspension import Abandoned
from antiphon.environment import effect_place
from antiphon.errors import (
    ConfigError,
    Diverged,
    EffectFailed,
    EffectUncertain,
    MemoFailed,
    NotDone,
    StateTooLarge,
    StoreError,
    StoreFull,
)
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
    Store,
    Uncertain,
)
from antiphon.seal.claims import encode_journal, largest

log = logging.getLogger("antiphon")

T = TypeVar("T")
Scope = Literal["call", "arguments"]
_Leased: TypeAlias = LeasedRound | LeasedTaskRun | None
Leaving: TypeAlias = Callable[[], bool]
"""Returns whether the handler that wants an effect is being cancelled."""

_RETRIES = (0.1, 0.5, 2.0)
"""Seconds between the tries of an effect with `retry=True`; then it has failed."""

_BUSY_POLL = 0.05
_NONCE_BYTES = 12
"""Of the name of one claim: it need only differ from other claims of the same effect."""

_CUT_MARGIN = 1.0
"""Seconds beyond the time of the first cancellation for which a replay waits for the same one."""


class Once(msgspec.Struct, frozen=True, kw_only=True):
    """What an author says about an effect."""

    key: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    retry: bool = False
    verify: Callable[..., Any] | None = None
    scope: Scope = "call"
    window: Seconds | None = None
    scope_key: str | None = None
    returns: Any = None


class _Known(msgspec.Struct, frozen=True):
    """How an effect ended, as the journal keeps it."""

    outcome: EntryOutcome
    payload: bytes
    reused: bool = False


async def once(execution: Execution, spec: Once) -> Any:
    """Run an effect, or return or raise what was recorded of it."""
    await execution.enter_async("once")
    check_key(spec.key)
    name = function_name(spec.fn)
    arguments = arguments_digest(spec.fn, spec.args)
    digest = short_digest(name.encode(), arguments)
    codec = codec_of(spec.fn, spec.returns)
    entry = execution.recall("effect", spec.key, digest, name)
    if entry is None:
        execution.check_new("effect", spec.key, name)
    elif entry.outcome != "cut":
        return _seen(entry, codec, spec.key)
    else:
        await _cut_again(entry)  # if nothing cuts it this time, the ledger knows how it ended
    if execution.handler.options.anchor:
        await _anchor(execution)
    _check_budget(execution)
    record = partial(
        execution.record, "effect", spec.key, digest=digest, note=name, retry=spec.retry
    )
    with _unclaimed(execution, spec.key) if execution.in_branch else contextlib.nullcontext():
        names = await _names(execution, spec, name, arguments)
        known = await _recorded(execution, spec, codec, names, record)
    return _seen(record(known.payload, outcome=known.outcome, reused=known.reused), codec, spec.key)


@contextlib.contextmanager
def _unclaimed(execution: Execution, key: str) -> Generator[None]:
    """Let a handler that returns know of an effect in a child task, until it is claimed."""
    execution.unclaimed = {**execution.unclaimed, key: asyncio.current_task()}
    try:
        yield
    finally:
        _claimed(execution, key)


def _claimed(execution: Execution, key: str) -> None:
    if key in execution.unclaimed:
        left = execution.unclaimed.items()
        execution.unclaimed = {other: task for other, task in left if other != key}


async def _recorded(
    execution: Execution,
    spec: Once,
    codec: JsonCodec,
    names: Sequence[Effect],
    record: Callable[..., Entry],
) -> _Known:
    """Run an effect; whatever the handler sees instead of a result or a failure is recorded."""
    try:
        leased = await execution.delivery.leased(execution)
        known = await _shielded(execution, partial(_perform, execution, spec, codec, names, leased))
    except StoreError as error:
        raise execution.fault(error) from None
    except NotDone as error:
        record(dump_error(error), outcome="not-done")
        raise
    except EffectUncertain as error:
        record(encode_value(error.call_id), outcome="uncertain")
        telemetry = execution.environment.telemetry
        if telemetry is not None:
            telemetry.uncertain(execution.handler.identity)
        raise
    except asyncio.CancelledError:
        if not execution.ending:
            record(_cut_payload(execution), outcome="cut")
        raise
    if execution.state is ASLEEP:
        execution.enter("once")
    return known


def _seen(entry: Entry, codec: JsonCodec, key: str) -> Any:
    """Return or raise what the handler saw of an effect."""
    if entry.outcome == "ok":
        return codec.load(entry.payload)
    if entry.outcome == "failed":
        raise EffectFailed(key, entry.value())
    if entry.outcome == "uncertain":
        raise EffectUncertain(entry.value(), key)
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


# --- what an effect is ---------------------------------------------------------------------------


async def _names(execution: Execution, spec: Once, name: str, arguments: bytes) -> list[Effect]:
    """Return the names under which an effect is claimed."""
    if spec.scope == "call":
        names = [_own_effect(execution, spec, name, arguments)]
    else:
        names = await _shared_effects(execution, spec, name, arguments)
    if execution.handler.options.restarts is None:
        return names
    return [await _restartable(execution, spec, effect) for effect in names]


def _own_effect(execution: Execution, spec: Once, name: str, arguments: bytes) -> Effect:
    """Name an effect of one call."""
    call = execution.call.id
    if spec.args or isinstance(spec.fn, partial):
        # With the seed, which only tokens carry: who reads the ledger cannot guess them.
        arguments = short_digest(execution.call.seed, arguments)
    return Effect(f"{call}/{spec.key}", call, spec.key, name, arguments)


async def _shared_effects(
    execution: Execution, spec: Once, name: str, arguments: bytes
) -> list[Effect]:
    """Name an effect that calls share: several times while keys are replaced."""
    call = execution.call.id
    _check_shared(execution, spec)
    earlier = _earlier_shared_name(execution, spec, arguments)
    try:
        if await execution.environment.store.has_effect(earlier):
            return [Effect(earlier, call, spec.key, name, arguments)]
    except StoreError as error:
        raise execution.fault(error) from None
    # Servers with other keys in common, or in another order, must meet at one of the names; all
    # claim them in one order.
    keyed = sorted(_shared_names(execution, spec, arguments))
    return [Effect(f"shared/{one.hex()}", call, spec.key, name, one) for one in keyed]


async def _restartable(execution: Execution, spec: Once, effect: Effect) -> Effect:
    """Let the call of an effect be started over; a task goes on by itself and never is."""
    if spec.scope != "call" or execution.delivery.background:
        return effect
    restart = await restartable(
        execution.environment, execution.handler, execution.request, execution.call
    )
    return msgspec.structs.replace(effect, restart=restart)


def _check_shared(execution: Execution, spec: Once) -> None:
    if spec.window is None or not seconds(spec.window) > 0:
        raise ConfigError('once(scope="arguments") needs window=: how long its result counts')
    principal = execution.request.principal
    if principal.anonymous and principal.transport == "http" and spec.scope_key is None:
        raise ConfigError(
            'once(scope="arguments") for anonymous HTTP callers would mix callers: give '
            "scope_key=, or authenticate callers"
        )


def _shared_names(execution: Execution, spec: Once, arguments: bytes) -> list[bytes]:
    principal = execution.request.principal
    caller = (
        principal.issuer, principal.subject, principal.client_id, principal.transport,
    )  # fmt: skip
    parts = [(part or "").encode("utf-8", "surrogatepass") for part in caller]
    parts += _shared_parts(execution, spec, arguments)
    return execution.environment.sealer.names(b"shared effect", *parts)


def _earlier_shared_name(execution: Execution, spec: Once, arguments: bytes) -> str:
    """Return the id that earlier releases gave an effect: without a key."""
    principal = execution.request.principal
    owner = f"{principal.issuer}\0{principal.subject}\0{principal.client_id}\0{principal.transport}"
    parts = _shared_parts(execution, spec, arguments)
    return "shared/" + short_digest(owner.encode(), *parts).hex()


def _shared_parts(execution: Execution, spec: Once, arguments: bytes) -> list[bytes]:
    request = execution.request
    return [
        (spec.scope_key or "").encode(),
        request.method.encode(),
        request.target.encode(),
        canonical(request.arguments or {}),
        spec.key.encode(),
        arguments,
    ]


def idempotency_key(call: str, key: str) -> str:
    """Name an effect for the outside world: the same in every try."""
    return sha256(f"{call}\0{key}".encode()).hexdigest()[:32]


# --- claiming and running ------------------------------------------------------------------------


async def _perform(
    execution: Execution,
    spec: Once,
    codec: JsonCodec,
    names: Sequence[Effect],
    leased: _Leased,
    leaving: Leaving,
) -> _Known:
    """Claim the effect and do it, or return what came of it before."""
    effect = names[0]
    while True:
        begin = await _begin(execution, spec, effect, leased, leaving)
        match begin:
            case Started(fence):
                if leaving():
                    # The round ended while the claim was made: nothing has happened yet.
                    await _abandon(execution, effect, fence)
                    raise asyncio.CancelledError
                if len(names) > 1:
                    perform = partial(_perform, execution, spec, codec, names[1:], None, leaving)
                    return await _under_next_name(execution, effect, fence, perform)
                _claimed(execution, spec.key)
                return await _body(execution, spec, codec, effect, fence)
            case Uncertain(call):
                if spec.verify is None or leaving():
                    raise EffectUncertain(call or effect.call, spec.key)
                await _verify(execution, spec, spec.verify, codec, call or effect.call)
            case Finished(result, call):
                place = effect_place(call or effect.call, spec.key)
                payload = await execution.environment.reveal(result, place)
                if not await _taken_back(execution, spec, codec, begin, payload):
                    return _Known("ok", payload, reused=bool(call) and call != effect.call)
            case _:
                return await _known(execution, spec, effect, begin)


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
            begin = await _until_reached(claim, _patience(execution))
        except StoreError:
            _later(execution, partial(_free, environment.store, effect, claim))
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
            expose=environment.expose_errors,
        )
        raise EffectUncertain(call, spec.key) from error
    else:
        result = await environment.protect(data, effect_place(call, spec.key))
    await environment.store.settle_uncertain(call, spec.key, result=result)


async def _known(execution: Execution, spec: Once, effect: Effect, begin: Begin) -> _Known:
    """Turn what the ledger says of an effect that we do not run into what the journal keeps."""
    environment = execution.environment
    match begin:
        case FailedEffect(error):
            text = await environment.reveal_text(error, f"failure {effect.id}")
            return _Known("failed", encode_value(text))
        case Mismatch(function):
            raise execution.fault(
                Diverged(
                    recorded=f"effect {spec.key!r} ({function})",
                    now=f"effect {spec.key!r} ({effect.function})",
                    cure="Give an effect with another function or other arguments a new key.",
                )
            )
        case LeaseLost():
            execution.abandoned = True
            raise Abandoned
        case Started() | Finished() | Busy() | Uncertain():
            raise EffectUncertain(execution.call.id, spec.key)


async def _shielded(
    execution: Execution, perform: Callable[[Leaving], Coroutine[Any, Any, _Known]]
) -> _Known:
    """Claim and settle an effect even when cancelled; deliver the cancellation after."""
    cancelled: asyncio.CancelledError | None = None
    task = asyncio.ensure_future(perform(lambda: cancelled is not None or execution.ending))
    _note_running(execution, task)
    while not task.done():
        try:
            with _shield_from_anyio() if cancelled else contextlib.nullcontext():
                await asyncio.wait({task})
        except asyncio.CancelledError as error:
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
    execution: Execution, spec: Once, codec: JsonCodec, effect: Effect, fence: int
) -> _Known:
    """Call the function and settle what came of it."""
    environment, what = execution.environment, f"the result of effect {spec.key!r}"
    with _lease_renewed(execution, effect.id, fence):
        try:
            value = await _attempts(execution, spec, effect.call)
            payload, _ = codec.keep(value, what)  # what cannot be read back is not settled as done
        except NotDone:
            await _abandon(execution, effect, fence)
            raise
        except asyncio.CancelledError:
            raise  # the process is going down: the claim stays, and is uncertain
        except Exception as error:
            log_failure(
                log,
                error,
                "effect %r of %s failed",
                spec.key,
                execution.handler.identity,
                expose=environment.expose_errors,
            )
            text = error_text(error)
            kept = await environment.protect_text(text, f"failure {effect.id}")
            if not await _settle(execution, effect, fence, result=None, error=kept):
                raise EffectUncertain(execution.call.id, spec.key) from error
            return _Known("failed", encode_value(text))
        kept = await environment.protect(payload, effect_place(effect.call, spec.key))
        if not await _settle(execution, effect, fence, result=kept, error=None):
            raise EffectUncertain(execution.call.id, spec.key)
        return _Known("ok", payload)


async def _under_next_name(
    execution: Execution,
    effect: Effect,
    fence: int,
    perform: Callable[[], Coroutine[Any, Any, _Known]],
) -> _Known:
    """Claim the effect under its other names and do it; settle it under this one in the same way.

    What is not settled under this name is settled under the next, where everybody looks too.
    """
    environment = execution.environment
    with _lease_renewed(execution, effect.id, fence):
        try:
            known = await perform()
        except BaseException:
            await _abandon(execution, effect, fence)
            raise
        if known.outcome == "ok":
            result = await environment.protect(known.payload, effect_place(effect.call, effect.key))
            await _settle(execution, effect, fence, result=result, error=None)
        else:
            text = decode_value(known.payload)
            error = await environment.protect_text(text, f"failure {effect.id}")
            await _settle(execution, effect, fence, result=None, error=error)
        return known


async def _attempts(execution: Execution, spec: Once, call: str) -> Any:
    kwargs = _extra(spec.fn, call, spec.key)
    for pause in (*_RETRIES, None):
        try:
            with execution.inside(spec.key):
                return await call_to_end(spec.fn, spec.args, kwargs)
        except (NotDone, asyncio.CancelledError):
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


# --- settling ------------------------------------------------------------------------------------
#
# An effect has happened when it is settled: a store that is out of reach for a moment must not make
# its end uncertain. A try that failed may have been heard all the same; the next one then finds the
# effect settled.

_FIRST_PAUSE, _MOST_PAUSE = 0.05, 1.0


async def _settle(
    execution: Execution, effect: Effect, fence: int, *, result: bytes | None, error: str | None
) -> bool:
    """Record the result or the failure; False if the lease is lost."""
    store, tries = execution.environment.store, 0

    async def settle() -> bool:
        nonlocal tries
        tries += 1
        if await store.settle(effect.id, fence, result=result, error=error):
            return True
        return tries > 1 and await _is_settled(store, effect)

    return await _until_reached(settle, _patience(execution))


async def _abandon(execution: Execution, effect: Effect, fence: int) -> None:
    """Free the claim: nothing happened."""
    abandon = partial(execution.environment.store.abandon, effect.id, fence)
    try:
        await _until_reached(abandon, _patience(execution))
    except StoreError:
        _later(execution, abandon)
        raise


async def _free(store: Store, effect: Effect, claim: Callable[..., Awaitable[Begin]]) -> None:
    """Free a claim of which no reply came: nothing has run in its name."""
    rows = await store.effects(effect.call)
    if any(row.key == effect.key and row.settled is None for row in rows):
        # The round is no longer held. The nonce says whether the claim is ours.
        begin = await claim(under=None, retry=False)
        if isinstance(begin, Started):
            await store.abandon(effect.id, begin.fence)


def _later(execution: Execution, operation: Callable[[], Awaitable[None]]) -> None:
    """Go on trying after the reply, for as long as the claim could still be in the way."""
    environment = execution.environment
    lease = environment.limits.lease.total_seconds()

    async def go_on() -> None:
        with contextlib.suppress(StoreError):
            await _until_reached(operation, lease)

    task = asyncio.ensure_future(go_on())
    environment.background.add(task)
    task.add_done_callback(environment.background.discard)


async def _is_settled(store: Store, effect: Effect) -> bool:
    rows = await store.effects(effect.call)
    return any(row.key == effect.key and row.state in ("done", "failed") for row in rows)


def _patience(execution: Execution) -> float:
    return execution.environment.limits.lease.total_seconds() / 3


async def _until_reached(operation: Callable[[], Awaitable[T]], patience: float) -> T:
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
    elif entry.outcome == "ok":
        return codec.load(entry.payload)
    elif entry.outcome == "failed":
        raise load_error(entry.payload) or MemoFailed(key, RecordedError.of(entry.payload).text)
    else:
        await _cut_again(entry)
    check_secret(execution, "memo", key, secret=secret)
    record = partial(execution.record, "memo", key, note=name, secret=secret)
    try:
        with execution.inside(key):
            value = await call_to_end(fn, args)
        payload, value = codec.keep(value, f"the result of memo {key!r}")
    except asyncio.CancelledError:
        if not execution.ending:
            record(_cut_payload(execution), outcome="cut")
        raise
    except Exception as error:
        if execution.ending or execution.verdict is not None:
            raise
        payload = dump_error(error)
        record(payload, outcome="failed")
        if load_error(payload) is None:
            raise MemoFailed(key, error_text(error)) from error
        raise
    execution.enter("memo")  # the round may have ended while it was computed
    record(payload)
    return value
