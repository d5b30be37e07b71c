"""The end of a call, as those are told who keep a record of calls."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from antiphon.protocol.failures import log_failure
from antiphon.protocol.request import Era, Principal, Request

_log = logging.getLogger("antiphon")

EndOutcome = Literal["complete", "error", "cancelled"]

OnEnd = Callable[["CallEnd"], Any]
F = TypeVar("F", bound=OnEnd)


class CallEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How one call ended. Holds no arguments, answers, tokens or results."""

    call: str
    """The id of the call, the same in all of its rounds and in its task."""

    kind: Literal["tool", "prompt", "resource"]
    name: str
    """Of the tool or prompt; the URI or URI template of a resource."""

    principal: Principal
    era: Era
    rounds: int
    """In the legacy era the whole call is one round."""

    outcome: EndOutcome
    """`error` also where a tool says so in its result. An error after which the client may send the
    same round again is told each time. `cancelled`: the client went away or cancelled its task."""

    task: bool = False
    """Whether it ended as a task."""

    at: float
    """Seconds since the epoch."""


class CallEnds:
    """Whom to tell when a call has ended. Empty for most servers."""

    __slots__ = ("_told", "listeners")

    def __init__(self) -> None:
        """Begin without listeners."""
        self.listeners: list[OnEnd] = []
        self._told: set[asyncio.Future[Any]] = set()

    def add(self, fn: F) -> F:
        """Tell a function of every end from now on."""
        self.listeners.append(fn)
        return fn

    def tell(
        self,
        request: Request,
        kind: Literal["tool", "prompt", "resource"],
        name: str,
        outcome: EndOutcome,
        at: float,
        *,
        task: bool = False,
    ) -> None:
        """Tell everybody; what they raise is logged and changes nothing."""
        end = CallEnd(
            call=request.call,
            kind=kind,
            name=name,
            principal=request.principal,
            era=request.era,
            rounds=request.number,
            outcome=outcome,
            task=task,
            at=at,
        )
        for listener in self.listeners:
            try:
                made = listener(end)
            except Exception as error:  # noqa: BLE001 - user code must not change how a call ended
                log_failure(_log, error, "a listener of server.on_end failed")
            else:
                if inspect.isawaitable(made):
                    self._finish(asyncio.ensure_future(made))

    def _finish(self, telling: "asyncio.Future[Any]") -> None:
        def done(future: "asyncio.Future[Any]") -> None:
            self._told.discard(future)
            error = None if future.cancelled() else future.exception()
            if error is not None:
                log_failure(_log, error, "a listener of server.on_end failed")

        self._told.add(telling)
        telling.add_done_callback(done)


class _ToolEnd(msgspec.Struct):
    is_error: bool = msgspec.field(name="isError", default=False)


_decode = msgspec.json.Decoder(_ToolEnd).decode


def outcome_of(result: bytes) -> EndOutcome:
    """Return how a call ended by its result: a tool may say that it failed."""
    return "error" if _decode(result).is_error else "complete"
