"""One call on its way to another server, as a handler of ours.

Owns what both eras of other servers need: putting their asks to our client as they are, under the
same keys (one that comes again gets a number), passing on what they tell, and their errors as ours.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextvars import Context as Surrounding
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from antiphon.apps.gateway.upstream import Upstream
from antiphon.client.flow_types import Failure
from antiphon.engine.context import Context, execution_of
from antiphon.engine.execution import Execution
from antiphon.errors import (
    CAPABILITY_MISSING,
    LEGACY_NOT_FOUND,
    CallerError,
    CapabilityMissing,
    InvalidRequest,
    ResourceNotFound,
    ToolError,
)
from antiphon.protocol.asks import Outcome, RawAsk
from antiphon.protocol.capabilities import Capability, allows
from antiphon.protocol.text import safe

T = TypeVar("T")

_ASKABLE: tuple[Capability, ...] = ("form", "url", "sampling", "sampling.tools", "roots")

EFFECT = "upstream"
"""The key of the effect that begins the call at the other server."""

_CANCELLED = "The call was cancelled while the upstream server worked on it. Nothing was repeated."


@dataclass(slots=True)
class Forwarding:
    """A call on its way, in one execution of its handler."""

    ctx: Context
    upstream: Upstream
    method: str
    params: Mapping[str, Any]
    used: set[str]
    """Keys under which something was asked."""

    running: "asyncio.Task[Any] | None" = None

    @property
    def execution(self) -> Execution:
        return execution_of(self.ctx)

    @property
    def can(self) -> frozenset[Capability]:
        """What the client of this round can be asked, and so the other server may ask."""
        declared = self.execution.request.capabilities
        return frozenset(one for one in _ASKABLE if allows(declared, one))

    # --- what the other server tells -----------------------------------------------------------

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass on progress, if our client wants any."""
        execution = self.execution
        await execution.delivery.report(execution, progress, total, message)

    async def log(self, level: str, data: Any, logger: str | None) -> None:
        """Pass on a log message, if our client wants that level."""
        execution = self.execution
        await execution.delivery.log(execution, data, level, logger or self.upstream.settings.name)

    # --- asking our client -----------------------------------------------------------------------

    async def ask(self, asks: Sequence[tuple[str, RawAsk]]) -> list[dict[str, Any]]:
        """Put asks as they are, in one round; return the answers in their order."""
        keys = [self._key(key) for key, _ in asks]
        put = {key: self._signed(ask) for key, (_, ask) in zip(keys, asks, strict=True)}
        found: dict[str, Outcome[Any]] = await self.ctx.outcomes(**put)
        return [cast("dict[str, Any]", found[key].value) for key in keys]

    def _signed(self, ask: RawAsk) -> RawAsk:
        """Say who asks, before anything the other server says: people know us, not it."""
        message = ask.params.get("message")
        if ask.method != "elicitation/create" or not isinstance(message, str):
            return ask
        name = safe(self.upstream.settings.name, 80)
        params = {**ask.params, "message": f"{name} asks: {message}"}
        return RawAsk(method=ask.method, params=params)

    def _key(self, wanted: str) -> str:
        key, number = wanted, 1
        while key in self.used:
            number += 1
            key = f"{wanted}.r{number}"
        self.used.add(key)
        return key

    # --- running things that outlive a cancelled wait --------------------------------------------

    async def apart(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in a task of its own, outside of the handler's surroundings; `stop` cancels it.

        Raises:
            ToolError: It was cancelled by `stop`.
        """
        self.running = asyncio.get_running_loop().create_task(work, context=Surrounding())
        try:
            return await self.running
        except asyncio.CancelledError:
            if self.running.cancelled() and not _is_cancelled():
                raise ToolError(_CANCELLED) from None
            self.running.cancel()
            raise

    def stop(self) -> None:
        """Cancel what runs at the other server: our client has gone away or cancelled."""
        if self.running is not None:
            self.running.cancel()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


# --- errors of the other server ------------------------------------------------------------------


def not_sent(why: str) -> str:
    """Say that the other server was not reached."""
    return f"The upstream server cannot be reached. Nothing was sent. ({safe(why, 200)})"


def kept_error(failure: Failure) -> dict[str, Any]:
    """Return a JSON-RPC error as the journal keeps it."""
    return {"code": failure.code, "message": failure.message, "data": failure.data}


def raised(method: str, error: Mapping[str, Any]) -> CallerError:
    """Return the other server's error as ours."""
    code, text, data = error["code"], error["message"], error["data"]
    if method == "resources/read" and code == LEGACY_NOT_FOUND:
        return ResourceNotFound(text, data=data)
    required = _required(data) if code == CAPABILITY_MISSING else None
    if required is not None:
        return CapabilityMissing(required, "the upstream server", begun=True)
    return InvalidRequest(text, code=code, data=data)


def _required(data: object) -> dict[str, Any] | None:
    if not isinstance(data, dict):
        return None
    found = cast("dict[str, Any]", data).get("requiredCapabilities")
    return cast("dict[str, Any]", found) if isinstance(found, dict) and found else None
