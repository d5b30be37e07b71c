"""Asking over a back channel: the client answers while the handler waits (P7).

`BackChannelDelivery` is how a handler asks on a legacy session, where a round does not end at an
ask. Owns the shape of what comes back, the bounds that a token would carry elsewhere, and what a
client is told that cannot be asked. Sessions and transports are behind `Channel`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from antiphon.core.asks import ElicitUrl, seconds
from antiphon.core.request import Channel, LegacyAsk, Request
from antiphon.core.text import safe
from antiphon.engine.call import Rejected
from antiphon.engine.delivery import Batch
from antiphon.engine.environment import Environment
from antiphon.engine.execution import Execution
from antiphon.engine.handler import Handler
from antiphon.engine.questions import Question, check_shape, unanswered
from antiphon.errors import (
    CannotAsk,
    CapabilityMissing,
    InvalidRequest,
    TooManyRounds,
    UrlRequired,
)

if TYPE_CHECKING:
    from antiphon.core.limits import Limits

_MAX_HOLD = 30.0

_URL_ERROR_SINCE = "2025-11-25"


class BackChannelDelivery:
    """Asks go out while the handler waits; nothing is sealed and nothing is run again."""

    def __init__(self, round: Request, services: Environment, arguments: Mapping[str, Any] | None):
        self.arguments = arguments
        """As they came: a native handler that is entered again gets its own copy."""

        self._channel = back_channel(round)
        self._limits: Limits = services.limits
        self._rounds = 0
        self._pauses = 0
        self._entered = 0

    async def ask(self, run: Execution, batch: Batch) -> Sequence[Any]:
        """Put the asks, all at once; what comes back malformed is asked for again (S4-6)."""
        channel = self._channel
        if channel is None:
            raise CannotAsk(_NO_SESSION)
        self._rounds += 1
        if self._rounds > self._limits.rounds:
            raise TooManyRounds(self._limits.rounds)
        answers: dict[str, Any] = {}
        open_: dict[str, Question] = dict(batch)
        while open_:
            requests = {key: self._request(run, key, ready) for key, ready in open_.items()}
            raws = await channel.ask(requests)
            for key, ready in tuple(open_.items()):
                try:
                    answers[key] = _shaped(ready, key, raws.get(key))
                except InvalidRequest as error:
                    before = run.call.rejected.get(key)
                    run.reject(key, Rejected(before.tries + 1 if before else 1, error.message))
                else:
                    del open_[key]
        return [answers[key] for key, _ in batch]

    def _request(self, run: Execution, key: str, ready: Question) -> LegacyAsk:
        rejected = run.call.rejected.get(key)
        body = msgspec.json.decode(ready.body(rejected.reason if rejected else ""))
        span = ready.ask.timeout or ready.ask.ttl or run.handler.options.ttl
        limit = seconds(span) if span is not None else self._limits.legacy_ask.total_seconds()
        return LegacyAsk(body["method"], body.get("params", {}), limit)

    async def pause(self, run: Execution) -> None:
        """Go on at once, or after the hold: there is no round to end."""
        self._pauses += 1
        if self._pauses > self._limits.pauses:
            raise TooManyRounds(self._limits.pauses, "pauses")
        await asyncio.sleep(min(run.hold, _MAX_HOLD))

    def enter_again(self) -> None:
        """Count an entry of a native handler with the answers to what it returned."""
        self._entered += 1
        if self._entered > self._limits.legacy_rounds:
            raise TooManyRounds(self._limits.legacy_rounds, "re-entries for a legacy client")


def _shaped(ready: Question, key: str, raw: object) -> dict[str, Any]:
    if unanswered(raw):
        return cast("dict[str, Any]", raw)
    return check_shape(ready.kind, key, raw)


def back_channel(round: Request) -> Channel | None:
    """Return the channel of a legacy request if it can carry asks."""
    return round.channel if round.channel.can_ask else None


# --- URLs without a back channel --------------------------------------------------------------


def must_restart(run: Execution) -> bool:
    """Tell whether a visit can only be asked for by an error that the client answers by a retry."""
    round = run.round
    return (
        round.era == "legacy" and round.version >= _URL_ERROR_SINCE and back_channel(round) is None
    )


def url_required(run: Execution, key: str, ask: ElicitUrl) -> UrlRequired:
    """Make the error that sends the client to a URL, after which it calls anew (LEGACY-23).

    Raises:
        CannotAsk: The call has acted or remembered; a new call would do it again (S7-2).
    """
    if any(entry.kind in ("memo", "effect") for entry in run.replay.entries()):
        raise CannotAsk(
            f"the visit {key!r} can only be asked for by ending this call, because the connection "
            "has no session; but the call has acted or remembered already, and a new call would "
            "do it again. Ask for the visit first."
        )
    return UrlRequired(ask.message, ask.url, run.call.id)


async def visited(run: Execution, key: str) -> None:
    """Tell a legacy client that the visit has done its work (LEGACY-22)."""
    await run.round.channel.visited(key)


# --- clients that cannot be asked --------------------------------------------------------------

_NO_SESSION = (
    "this connection has no session over which the server could ask. Connect with a session "
    "(initialize, then Mcp-Session-Id), or with a client that speaks 2026-07-28"
)
_SINCE = {
    "elicitation": "2025-06-18",
    "elicitation.url": "2025-11-25",
    "sampling.tools": "2025-11-25",
}


def lacking(error: CapabilityMissing, handler: Handler, round: Request) -> str:
    """Say to a legacy client what it lacks and what would help; it knows no -32021 (GUIDE-02)."""
    head = f"{handler.kind} {handler.name!r} has to ask the client for something"
    if back_channel(round) is None:
        return f"{head}, but {_NO_SESSION}."
    reasons = [_reason(name, round.version) for name in _names(error.required)]
    return safe(f"{head}, but {'; and '.join(reasons)}.", 2_000)


def _reason(name: str, revision: str) -> str:
    since = _SINCE.get(name, "")
    if since > revision:
        return (
            f"revision {revision} of the protocol, which it speaks, has no {name!r}. A client of "
            f"revision {since} or later is needed"
        )
    return f"it did not declare the capability {name!r}. Enable it in the client, or use another"


def _names(required: Mapping[str, Any]) -> list[str]:
    names: list[str] = []
    for top, sub in required.items():
        inner = [f"{top}.{name}" for name in cast("Mapping[str, Any]", sub) if name != "form"]
        names += inner or [top]
    return names
