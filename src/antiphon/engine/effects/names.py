"""What an effect is: what its author says, the names under which it is claimed, how it ended."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

import msgspec

from antiphon.engine.environment import arguments_place
from antiphon.engine.execution import Execution
from antiphon.engine.handler import call_here
from antiphon.engine.restarts import restartable
from antiphon.engine.serialization.arguments import shown_arguments
from antiphon.errors import ConfigError
from antiphon.ports import Effect, EqualCalls
from antiphon.protocol.asks import Seconds, seconds
from antiphon.protocol.digest import canonical, short_digest
from antiphon.protocol.effect_ends import UnknownTypes
from antiphon.protocol.journal import EntryOutcome, memos_to_keep

Scope = Literal["call", "arguments"]


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
    unknown_after: UnknownTypes = ()
    """The author's exceptions after which it may have happened."""

    on_cancel: Callable[[], object] | None = None
    """Told once when the handler is cancelled; the effect is waited for all the same."""


class Known(msgspec.Struct, frozen=True):
    """How an effect ended, as the journal keeps it."""

    outcome: EntryOutcome
    payload: bytes
    reused: bool = False


async def effect_names(
    execution: Execution, spec: Once, name: str, arguments: bytes
) -> list[Effect]:
    """Return the names under which an effect is claimed."""
    if spec.scope == "call":
        names = [_own_effect(execution, spec, name, arguments)]
    else:
        names = _shared_effects(execution, spec, name, arguments)
    equal = _equal_calls(execution, spec, name, arguments)
    if equal is not None:  # under the last name, by which it runs: the store keeps one of each
        names[-1] = msgspec.structs.replace(names[-1], equal=equal)
    shown = await sealed_arguments(execution, spec, execution.call.id)
    if shown:
        names = [msgspec.structs.replace(effect, shown=shown) for effect in names]
    if execution.handler.options.restarts is None:
        return names
    return [await _restartable(execution, spec, effect) for effect in names]


async def sealed_arguments(execution: Execution, spec: Once, call: str) -> bytes:
    """Return what an effect is called with, for the operators who may have to settle it."""
    shown = shown_arguments(spec.fn, spec.args)
    place = arguments_place(call, spec.key)
    return await execution.environment.protect(shown, place) if shown else b""


def _equal_calls(
    execution: Execution, spec: Once, name: str, arguments: bytes
) -> EqualCalls | None:
    """Name the effect in every equal call of its caller; None where callers look all alike."""
    if not is_caller_known(execution, spec):
        return None
    request, sealer = execution.request, execution.environment.sealer
    parts = (
        sealer.audience.encode(),
        request.principal.owner.encode("utf-8", "surrogatepass"),
        _own_name(execution, spec).encode("utf-8", "surrogatepass"),
        execution.handler.identity.encode(),
        request.target.encode("utf-8", "surrogatepass"),
        canonical(request.arguments or {}),
        spec.key.encode(),
    )
    names = [one.hex() for one in sealer.names(b"equal call", *parts)]
    answers = sealer.names(b"equal answers", *_answers(execution))[0]
    inputs = sealer.names(b"equal inputs", name.encode(), arguments)[0]
    return EqualCalls(tuple(names), answers, inputs)


def is_caller_known(execution: Execution, spec: Once) -> bool:
    """Return whether an equal call of the same caller can be recognised."""
    return is_someone(execution) or bool(_own_name(execution, spec))


def is_someone(execution: Execution) -> bool:
    """Return whether the caller can be told from others: not an anonymous one over HTTP."""
    principal = execution.request.principal
    return not (principal.anonymous and principal.transport == "http")


def _own_name(execution: Execution, spec: Once) -> str:
    """Return how the author tells callers apart who are not authenticated."""
    key = execution.handler.options.restart_key
    named = None if key is None else call_here(key, execution.request.arguments or {})
    return str(named or "") + (spec.scope_key or "")


def _answers(execution: Execution) -> list[bytes]:
    """Return what people have filled in so far, in the order of the keys."""
    found: list[bytes] = []
    asks = [entry for entry in execution.replay.entries() if entry.kind == "ask"]
    for entry in sorted(asks, key=lambda entry: entry.key):
        raw = entry.value()
        if isinstance(raw, dict) and "content" in raw and "action" in raw:
            content = cast("dict[str, Any]", raw)["content"]
            found += [entry.key.encode(), canonical(content)]
    return found


def _own_effect(execution: Execution, spec: Once, name: str, arguments: bytes) -> Effect:
    """Name an effect of one call."""
    call = execution.call.id
    if spec.args or isinstance(spec.fn, partial):
        # With the seed, which only tokens carry: who reads the ledger cannot guess them.
        arguments = short_digest(execution.call.seed, arguments)
    return Effect(f"{call}/{spec.key}", call, spec.key, name, arguments)


def _shared_effects(execution: Execution, spec: Once, name: str, arguments: bytes) -> list[Effect]:
    """Name an effect that calls share: several times while keys are replaced."""
    call = execution.call.id
    _check_shared(execution, spec)
    # Servers with other keys in common, or in another order, must meet at one of the names; all
    # claim them in one order.
    keyed = sorted(_shared_names(execution, spec, arguments))
    return [Effect(f"shared/{one.hex()}", call, spec.key, name, one) for one in keyed]


async def _restartable(execution: Execution, spec: Once, effect: Effect) -> Effect:
    """Let the call of an effect be started over; a task goes on by itself and never is."""
    if spec.scope != "call" or execution.delivery.background:
        return effect
    memos = memos_to_keep(execution.call.journal, execution.replay.entries())
    restart = await restartable(
        execution.environment, execution.handler, execution.request, execution.call, memos
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
        *((principal.actor,) if principal.actor else ()),
    )  # fmt: skip
    parts = [(part or "").encode("utf-8", "surrogatepass") for part in caller]
    parts += _shared_parts(execution, spec, arguments)
    return execution.environment.sealer.names(b"shared effect", *parts)


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
