"""What an effect is: what its author says, the names under which it is claimed, how it ended."""

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any, Literal

import msgspec

from antiphon.core.asks import Seconds, seconds
from antiphon.core.digest import canonical, short_digest
from antiphon.core.journal import EntryOutcome
from antiphon.engine.execution import Execution
from antiphon.engine.restarts import restartable
from antiphon.errors import ConfigError, StoreError
from antiphon.ports import Effect

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
        *((principal.actor,) if principal.actor else ()),
    )  # fmt: skip
    parts = [(part or "").encode("utf-8", "surrogatepass") for part in caller]
    parts += _shared_parts(execution, spec, arguments)
    return execution.environment.sealer.names(b"shared effect", *parts)


def _earlier_shared_name(execution: Execution, spec: Once, arguments: bytes) -> str:
    """Return the id that earlier releases gave an effect: without a key."""
    principal = execution.request.principal
    owner = f"{principal.issuer}\0{principal.subject}\0{principal.client_id}\0{principal.transport}"
    if principal.actor:  # no earlier release knew one: nothing of the subject's own is found
        owner += f"\0{principal.actor}"
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
