"""Effects and memos: what happens once, and what is computed once (S5).

Owns the claim, the shielded body, the settling and what a replay gives back. Knows the store only
by its port.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Literal, TypeAlias, cast

import msgspec
from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

from antiphon.core.asks import Seconds, seconds
from antiphon.core.digest import canonical, short_digest
from antiphon.core.journal import Entry, Journal
from antiphon.engine import settling
from antiphon.engine.checks import check_secret
from antiphon.engine.execution import Execution
from antiphon.engine.handler import is_async
from antiphon.engine.keys import check_key
from antiphon.engine.serialization import Codec, codec_of, function_name, to_json
from antiphon.engine.signals import Abandoned
from antiphon.errors import (
    ConfigError,
    Diverged,
    EffectFailed,
    EffectUncertain,
    HandlerError,
    KeyReused,
    NotDone,
    StateTooLarge,
    StoreError,
)
from antiphon.ports import (
    About,
    Begin,
    Busy,
    Effect,
    FailedEffect,
    Finished,
    HeldRound,
    HeldTaskRun,
    LeaseLost,
    Mismatch,
    Started,
    Uncertain,
)
from antiphon.seal.claims import encode_journal, largest

log = logging.getLogger("antiphon")

Scope = Literal["call", "arguments"]
_Under: TypeAlias = HeldRound | HeldTaskRun | None
Leaving: TypeAlias = Callable[[], bool]
"""Tells whether the run that wants an effect is on its way out."""

_RETRIES = (0.1, 0.5, 2.0)
"""Seconds between the tries of an effect with `retry=True`; then it has failed."""

_BUSY_POLL = 0.05
_NONCE_BYTES = 12
"""Of the name of one claim: it need only differ from other claims of the same effect."""

_ERROR_CHARS = 500


class Once(msgspec.Struct, frozen=True, kw_only=True):
    """What an author says about an effect."""

    key: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    retry: bool = False
    scope: Scope = "call"
    window: Seconds | None = None
    scope_key: str | None = None
    returns: Any = None


async def once(run: Execution, spec: Once) -> tuple[Any, bool]:
    """Run an effect, or give its recorded result; the flag tells whether it was reused (S5-6)."""
    await run.enter_async("once")
    check_key(spec.key)
    name = function_name(spec.fn)
    arguments = _arguments_digest(spec.args)
    digest = short_digest(name.encode(), arguments)
    codec = codec_of(spec.fn, spec.returns)
    entry = run.replay.recall("effect", spec.key, digest, name)
    if entry is not None:
        return _recalled(entry, codec, spec.key), bool(entry.value.get("reused"))
    run.check_new("effect", spec.key, name)
    await _anchor(run)
    check_budget(run)
    effect = _effect(run, spec, name, arguments)
    try:
        under = await _under(run)
        begin, outcome = await _shielded(run, partial(_perform, run, spec, codec, effect, under))
    except StoreError as error:
        run.trouble = error
        raise
    reused = isinstance(begin, Finished) and begin.call != run.call.id
    if reused:
        outcome["reused"] = True
    entry = Entry("effect", spec.key, outcome, digest, name, retry=spec.retry)
    run.replay.record(entry)
    return _recalled(entry, codec, spec.key), reused


def _recalled(entry: Entry, codec: Codec, key: str) -> Any:
    if "error" in entry.value:
        raise EffectFailed(key, entry.value["error"])
    return codec.load(entry.value["ok"])


async def _anchor(run: Execution) -> None:
    """End round one before its first effect, so that the effect runs under a redeemed token."""
    if run.handler.options.anchor and run.call.number == 1 and run.round.era == "modern":
        await run.pause()


def check_budget(run: Execution) -> None:
    """Refuse a journal that is too large before anything is claimed (S6-1)."""
    if run.services.spill or run.round.era == "legacy" or run.leg is not None:
        return
    journal = msgspec.structs.replace(run.call.journal, entries=run.replay.entries())
    size = len(encode_journal(journal))
    budget = run.services.limits.state_bytes
    if size > budget:
        raise StateTooLarge(size, budget, largest(journal))


def _arguments_digest(args: tuple[Any, ...]) -> bytes:
    # What is no JSON (a connection, a client) counts by its type: the effect is not about it.
    try:
        plain = to_jsonable_python(
            _ordered(args), fallback=lambda value: f"<{type(value).__qualname__}>"
        )
        return short_digest(canonical(plain), *_hidden(args))
    except (ValueError, TypeError, RecursionError) as error:
        raise HandlerError(
            "the arguments of an effect must be JSON values, models or dataclasses: "
            f"{type(error).__name__}"
        ) from error


def _ordered(value: Any) -> Any:
    """Put sets in order: theirs differs between processes, and a digest must not."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(_ordered, cast("set[Any]", value)), key=repr)
    if isinstance(value, (list, tuple)):
        return [_ordered(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {k: _ordered(v) for k, v in cast("dict[Any, Any]", value).items()}
    return value


def _hidden(value: Any) -> Iterator[bytes]:
    """Give what is written as stars: a charge to another card must not pass for the same one."""
    inner: Iterable[Any] = ()
    if isinstance(value, (Secret, SecretStr, SecretBytes)):
        yield repr(cast("Secret[Any]", value).get_secret_value()).encode()
    elif isinstance(value, dict):
        inner = cast("dict[Any, Any]", value).values()
    elif isinstance(value, (list, tuple)):
        inner = cast("list[Any]", value)
    elif isinstance(value, BaseModel):
        inner = (field for _, field in value)
    elif is_dataclass(value):
        inner = (getattr(value, field.name, None) for field in fields(value))
    for one in inner:
        yield from _hidden(one)


def _effect(run: Execution, spec: Once, name: str, arguments: bytes) -> Effect:
    call = run.call.id
    if spec.scope == "call":
        identity = f"{call}/{spec.key}"
        if spec.args:
            # With the seed, which only tokens carry: who reads the ledger cannot try them out.
            arguments = short_digest(run.call.seed, arguments)
    else:
        identity = _shared_identity(run, spec, arguments)
    return Effect(identity, call, spec.key, name, arguments)


def _shared_identity(run: Execution, spec: Once, arguments: bytes) -> str:
    if spec.window is None or not seconds(spec.window) > 0:
        raise ConfigError('once(scope="arguments") needs window=: how long its result counts')
    principal = run.round.principal
    if principal.anonymous and principal.transport == "http" and spec.scope_key is None:
        raise ConfigError(
            'once(scope="arguments") for anonymous HTTP callers would mix strangers: give '
            "scope_key=, or authenticate callers"
        )
    owner = f"{principal.issuer}\0{principal.subject}\0{principal.client_id}\0{principal.transport}"
    parts = (
        owner.encode(),
        (spec.scope_key or "").encode(),
        run.round.method.encode(),
        run.round.target.encode(),
        canonical(run.round.arguments or {}),
        spec.key.encode(),
        arguments,
    )
    return "shared/" + short_digest(*parts).hex()


async def _perform(
    run: Execution,
    spec: Once,
    codec: Codec,
    effect: Effect,
    under: HeldRound | HeldTaskRun | None,
    leaving: Leaving,
) -> tuple[Begin, dict[str, Any]]:
    """Claim the effect and do it, or tell what came of it before."""
    begin = await _begin(run, spec, effect, under, leaving)
    if not isinstance(begin, Started):
        return begin, await _known(run, spec, effect, begin)
    if leaving():
        # The round ended while the claim was made: nothing has happened yet, and nothing shall.
        await settling.abandon(run.services.store, effect, begin.fence, patience=_patience(run))
        raise asyncio.CancelledError
    return begin, await _body(run, spec, codec, effect, begin.fence)


async def _begin(
    run: Execution, spec: Once, effect: Effect, under: _Under, leaving: Leaving
) -> Begin:
    """Claim the effect; wait while another holder runs it."""
    services = run.services
    window = seconds(spec.window) if spec.window is not None else None
    nonce = services.entropy(_NONCE_BYTES)
    # The window starts when the effect settles, which is before the deadline.
    ttl = run.call.deadline - services.clock() + (window or 0.0)
    claim = partial(
        services.store.begin,
        effect,
        lease=services.limits.lease.total_seconds(),
        ttl=ttl,
        under=under,
        retry=spec.retry,
        window=window,
        nonce=nonce,
        about=About(run.handler.name, run.round.principal.owner),
    )
    while True:
        begin = await settling.begin(claim, patience=_patience(run))
        if not isinstance(begin, Busy):
            return begin
        if leaving():
            raise asyncio.CancelledError
        await asyncio.sleep(_BUSY_POLL)


async def _under(run: Execution) -> _Under:
    """Name the claimed round or leg, and what it has learned before its effect (S5-2)."""
    if run.leg is not None:
        return await run.leg.checkpoint(run)
    if not run.fence:
        return None
    prefix = None
    learned = [*run.call.timed, *run.replay.fresh]
    if learned:
        data = encode_journal(Journal(b"", learned))
        prefix = await run.services.protect(data, f"prefix {run.call.id} {run.call.number}")
    return HeldRound(run.call.id, run.call.number, run.fence, prefix)


async def _known(run: Execution, spec: Once, effect: Effect, begin: Begin) -> dict[str, Any]:
    """Turn what the ledger says of an effect that we do not run into what the journal keeps."""
    match begin:
        case Finished(result, call):
            data = await run.services.reveal(result, effect_place(call or effect.call, spec.key))
            return {"ok": msgspec.json.decode(data)}
        case FailedEffect(error):
            return {"error": await run.services.reveal_text(error, f"failure {effect.id}")}
        case Mismatch(function):
            raise Diverged(
                recorded=f"effect {spec.key!r} ({function})",
                now=f"effect {spec.key!r} ({effect.function})",
                cure="Give an effect with another function or other arguments a new key.",
            )
        case LeaseLost():
            raise Abandoned
        case Uncertain(call):
            raise EffectUncertain(call or run.call.id, spec.key)
        case Started() | Busy():
            raise EffectUncertain(run.call.id, spec.key)


async def _shielded(
    run: Execution, perform: Callable[[Leaving], Coroutine[Any, Any, tuple[Begin, dict[str, Any]]]]
) -> tuple[Begin, dict[str, Any]]:
    """Claim and settle an effect even when cancelled; deliver the cancellation after (S3-7)."""
    cancelled: asyncio.CancelledError | None = None
    task = asyncio.ensure_future(perform(lambda: cancelled is not None or run.told))
    run.effects.add(task)
    task.add_done_callback(run.effects.discard)
    while not task.done():
        try:
            with _out_of_reach() if cancelled else contextlib.nullcontext():
                await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen: what happened is in the ledger, where the next run finds it
        raise cancelled
    return task.result()


def _words(error: BaseException) -> str:
    """Say what went wrong; a group of one is that one."""
    group: object = error
    if isinstance(group, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", group).exceptions
        if len(inner) == 1:
            return _words(inner[0])
    return f"{type(error).__name__}: {error}"[:_ERROR_CHARS]


def _out_of_reach() -> contextlib.AbstractContextManager[Any]:
    """Keep anyio's cancellations out, which it repeats until they are obeyed."""
    import anyio  # nobody needs it before the first effect that is cancelled

    return anyio.CancelScope(shield=True)


async def _body(
    run: Execution, spec: Once, codec: Codec, effect: Effect, fence: int
) -> dict[str, Any]:
    """Call the function and settle what came of it."""
    services, what, patience = run.services, f"effect {spec.key!r}", _patience(run)
    with services_lease(run, effect.id, fence):
        try:
            value = await _attempts(run, spec)
            data = to_json(codec.dump(value, what), f"the result of {what}")
        except NotDone:
            await settling.abandon(services.store, effect, fence, patience=patience)
            raise
        except asyncio.CancelledError:
            raise  # the process is going down: the claim stays, and is uncertain
        except Exception as error:
            log.error(
                "effect failed",
                extra={"handler": run.handler.identity, "effect": spec.key},
                exc_info=error,
            )
            text = _words(error)
            kept = await services.protect_text(text, f"failure {effect.id}")
            if not await settling.settle(
                services.store, effect, fence, result=None, error=kept, patience=patience
            ):
                raise EffectUncertain(run.call.id, spec.key) from error
            return {"error": text}
        kept = await services.protect(data, effect_place(effect.call, spec.key))
        if not await settling.settle(
            services.store, effect, fence, result=kept, error=None, patience=patience
        ):
            raise EffectUncertain(run.call.id, spec.key)
        return {"ok": msgspec.json.decode(data)}


def effect_place(call: str, key: str) -> str:
    """Name the place for which the result of an effect is sealed: an operator can name it too."""
    return f"effect {call}/{key}"


def _patience(run: Execution) -> float:
    return run.services.limits.lease.total_seconds() / 3


@contextlib.contextmanager
def services_lease(run: Execution, effect: str, fence: int) -> Any:
    """Renew an effect's lease while its body runs."""
    lease = run.services.limits.lease.total_seconds()
    store = run.services.store

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


async def _attempts(run: Execution, spec: Once) -> Any:
    kwargs: dict[str, Any] = {}
    if _wants_idempotency_key(spec.fn):
        kwargs["idempotency_key"] = idempotency_key(run.call.id, spec.key)
    for pause in (*_RETRIES, None):
        try:
            return await call_user(run, spec.key, spec.fn, spec.args, kwargs)
        except (NotDone, asyncio.CancelledError):
            raise
        except Exception:
            if not spec.retry or pause is None:
                raise
            await asyncio.sleep(pause)
    return None


def idempotency_key(call: str, key: str) -> str:
    """Name an effect for the outside world: the same in every try."""
    return sha256(f"{call}\0{key}".encode()).hexdigest()[:32]


def _wants_idempotency_key(fn: Callable[..., Any]) -> bool:
    try:
        return "idempotency_key" in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return False


async def call_user(
    run: Execution, key: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function of the author's: async ones here, others in a thread."""
    if is_async(fn):
        with run.inside(key):
            return await fn(*args, **kwargs)

    def in_thread() -> Any:
        with run.inside(key):
            return fn(*args, **kwargs)

    value = await asyncio.to_thread(in_thread)
    if inspect.isawaitable(value):
        with run.inside(key):
            return await value
    return value


async def memo(
    run: Execution,
    key: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    returns: Any = None,
    secret: bool = False,
) -> Any:
    """Compute a value once per call and keep it in the journal."""
    await run.enter_async("memo")
    check_key(key)
    name = function_name(fn)
    codec = codec_of(fn, returns)
    entry = run.replay.recall("memo", key, b"", name)
    if entry is None:
        run.check_new("memo", key, name)
        check_secret(run, "memo", key, secret=secret)
        value = await call_user(run, key, fn, args, {})
        run.enter("memo")  # the round may have ended while it was computed
        entry = Entry("memo", key, codec.dump(value, f"memo {key!r}"), b"", name, secret=secret)
        run.replay.record(entry)
    return codec.load(entry.value)


def on_commit(run: Execution, key: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Note an effect for the end of the call (S5-7)."""
    run.enter("on_commit")
    check_key(key)
    if any(key == known for known, _, _ in run.commits):
        raise KeyReused("on_commit", key)
    run.commits.append((key, fn, args))


async def commit(run: Execution) -> None:
    """Run the noted effects: the handler has returned without an error."""
    for key, fn, args in run.commits:
        await once(run, Once(key=f"commit:{key}", fn=fn, args=args))
