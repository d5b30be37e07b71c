"""Settle an uncertain effect in an operator's name: authenticated, kept and audited."""

from typing import Any, Protocol

import msgspec

from antiphon.engine.environment import Environment, arguments_place, effect_place
from antiphon.errors import TokenRefused
from antiphon.ports import EffectRow, Overview, Settlement, UncertainEffect

HAPPENED, NOT_HAPPENED, TOO_LATE = "happened", "did not happen", "too late"


class OpensSealed(Protocol):
    """Whoever has keys of a server."""

    async def reveal(self, data: bytes, place: str) -> bytes:
        """Open what the server has sealed."""
        ...


async def called_with(
    keys: OpensSealed, effect: EffectRow | UncertainEffect
) -> dict[str, Any] | None:
    """Return what an effect was called with; None where these keys do not open it."""
    if not effect.shown:
        return {}
    try:
        plain = await keys.reveal(effect.shown, arguments_place(effect.call, effect.key))
    except TokenRefused:
        return None
    return msgspec.json.decode(plain, type=dict[str, Any])


async def settle_effect(
    environment: Environment,
    store: Overview,
    said: Settlement,
    *,
    result: bytes | None,
    transport: str = "console",
) -> bool:
    """Settle an effect; False when it is not uncertain any more.

    The audit is written first: without its record nothing is settled.

    Args:
        environment: Whose keys seal the result and authenticate what was said.
        store: Where the effect is.
        said: Who says what.
        result: Of the effect, as JSON; None when it did not happen.
        transport: How the operator reached the server.
    """
    sealed = result
    if result is not None:
        sealed = await environment.protect(result, effect_place(said.call, said.key))
    mac = await environment.authenticate(said.digest(environment.sealer.audience), said.place)
    await _note(environment, said, transport, HAPPENED if said.happened else NOT_HAPPENED)
    settled = await store.settle_effect(msgspec.structs.replace(said, mac=mac), result=sealed)
    if not settled:
        await _note(environment, said, transport, TOO_LATE)
    return settled


async def is_authentic(environment: Environment, said: Settlement) -> bool:
    """Tell whether whoever has the keys of the server has said this."""
    digest = said.digest(environment.sealer.audience)
    return await environment.is_authentic(said.mac, digest, said.place)


async def _note(environment: Environment, said: Settlement, transport: str, outcome: str) -> None:
    if environment.audit is not None:
        await environment.audit.settled(
            call=said.call,
            key=said.key,
            issuer=said.issuer,
            subject=said.subject,
            transport=transport,
            outcome=outcome,
            reason=said.reason,
        )
