"""Time, randomness and telemetry, as a server is given them; and who is told how calls end."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from antiphon.core.failures import log_failure
from antiphon.core.request import Era, Principal, Request

_log = logging.getLogger("antiphon")

Clock: TypeAlias = Callable[[], float]
"""Seconds since the epoch."""

Entropy: TypeAlias = Callable[[int], bytes]
"""That many random bytes, safe for keys."""

Level = Literal["tasks", "held", "parked"]
"""What is counted as it stands: tasks and held calls in the store, parked handlers here."""

EndOutcome = Literal["complete", "error", "cancelled"]

OnEnd = Callable[["CallEnd"], Any]
F = TypeVar("F", bound=OnEnd)


class Telemetry(Protocol):
    """Where calls are traced and counted. Must never raise and never sees answers or tokens."""

    reads_results: bool
    """Whether it looks at results, to see whether a tool said that it failed."""

    def round(self, round: Request) -> AbstractContextManager[None]:
        """Enclose one round; its end is noted on the round itself."""
        ...

    def run(self, run: Request) -> AbstractContextManager[None]:
        """Enclose one run of a task; what became of the task is noted as its outcome."""
        ...

    def here(self) -> str:
        """Return the trace context of the running round, for its token."""
        ...

    def resumed(self, round: Request, issued: float, expires: float) -> None:
        """Go on with a round whose token is open: when it was made, and when it expires."""
        ...

    def waits(self, expires: float) -> None:
        """Count a token that was given out and expires then."""
        ...

    def refused(self, reason: str) -> None:
        """Count a refused token."""
        ...

    def uncertain(self, handler: str) -> None:
        """Count an effect of unknown end that an execution of this handler has met."""
        ...

    def diverged(self, handler: str) -> None:
        """Count a re-run of this handler that took another path."""
        ...

    def decided(self, outcome: str) -> None:
        """Count a decision that a held call has gone on with."""
        ...

    def level(self, name: Level, known: Mapping[str, int]) -> None:
        """Take how many there are now, by state; told again every few seconds."""
        ...


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
