"""One server that calls are passed on to: its connections, its lists, and one round sent to it.

A modern server has one connection for everybody. A legacy server asks on the session of a call, so
that each call has a session for itself meanwhile; a session is used again only for calls of the
same caller.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from antiphon.client.answers import RawAnswers
from antiphon.client.client import Client
from antiphon.client.connection import OnChange, Progress
from antiphon.client.drivers import Waiting, drive, drive_by_hand
from antiphon.client.errors import AnswerFailed, ClientError
from antiphon.client.flow_types import PendingCall, Stopped, Succeeded, Timeouts
from antiphon.client.saved import SavedCall
from antiphon.errors import TooManyCalls
from antiphon.protocol.capabilities import Capability
from antiphon.protocol.request import Era, Principal

_log = logging.getLogger("antiphon.gateway")

MAX_SESSIONS = 64
"""Sessions with one legacy server at a time: each waits for a person, or for the server."""

MAX_IDLE = 8
"""Sessions with one legacy server that are kept for the next call of the same caller."""

_CALL = 24 * 3600.0
"""Seconds that a whole call may take: ours has a deadline of its own."""

CallEndTurn: TypeAlias = Stopped | Succeeded
"""What came of a whole call."""

Turn: TypeAlias = CallEndTurn | Waiting
"""What came of one round."""

OnLog: TypeAlias = Callable[[str, Any, str | None], Any]
"""Takes level, data and logger."""

_logs_to: ContextVar[OnLog | None] = ContextVar("antiphon_gateway_logs", default=None)
"""Where log messages go that arrive with the reply to this request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """Where a server is, and how it is called."""

    target: object
    name: str
    """For logs and error texts."""

    era: Any = "auto"
    timeout: float = 300.0
    """Seconds for one reply of a modern server."""

    options: Mapping[str, Any]
    """Of its target: headers, credentials, environment."""

    def client(self, **more: Any) -> Client:
        """Return a client that is not connected yet."""
        timeouts = Timeouts(total=_CALL, answer=_CALL, reply=self.timeout, rounds=1_000)
        return Client(
            self.target, name="antiphon-gateway", timeouts=timeouts, **{**self.options, **more}
        )


class Upstream:
    """The connections to one server."""

    def __init__(
        self,
        settings: UpstreamSettings,
        on_change: OnChange,
    ) -> None:
        """Nothing is connected yet; `on_change` takes what a legacy server announces."""
        self.settings = settings
        self.client: Client = settings.client(
            era=settings.era, on_change=on_change, on_log=self._log, log_level="debug"
        )
        self._sessions = OneCallSessions(settings, on_change)

    async def open(self) -> None:
        """Connect.

        Raises:
            ClientError: It cannot be reached.
        """
        await self.client.__aenter__()

    async def close(self) -> None:
        """End every connection."""
        await self._sessions.close()
        await self.client.__aexit__()

    @property
    def era(self) -> Era:
        """Of the server, as it was last seen."""
        return self.client.era

    @property
    def offered(self) -> frozenset[str]:
        """The capabilities that the server declares."""
        declared = self.client.session.server_capabilities
        return frozenset(() if declared is None else declared.model_dump(exclude_none=True))

    async def send(
        self,
        call: PendingCall,
        can: frozenset[Capability],
        on_progress: Progress | None,
        on_log: OnLog,
        *,
        wait: float | None = 0.0,
    ) -> Turn:
        """Send one round of a call to a modern server; wait for its task up to `wait` seconds."""
        _logs_to.set(on_log)  # the caller runs this in a task and a context of its own
        try:
            saved = SavedCall(call=call)
            prepared = await self.client.prepare(saved, can=can, on_progress=on_progress)
            return await drive_by_hand(prepared.flow, prepared, wait)
        except ClientError as error:
            return Stopped("lost", call, detail=str(error), sent=False)

    async def _log(self, level: str, data: Any, logger: str | None) -> None:
        """Pass a log message to its call; drop one of which nobody can tell whose it is.

        That one call is running is no proof that the message belongs to it.
        """
        on_log = _logs_to.get()
        if on_log is not None:
            await on_log(level, data, logger)

    async def cancel_task(self, id: str) -> None:
        """Ask the server to cancel a task; what it answers changes nothing here."""
        with suppress(ClientError):
            await self.client.cancel_task(id)

    async def session(self, caller: Principal, can: frozenset[Capability]) -> "OneCallSession":
        """Return a session with a legacy server for one call.

        Raises:
            ClientError: It cannot be reached.
            TooManyCalls: Too many are open.
        """
        one_caller = not caller.anonymous or caller.transport != "http"
        return await self._sessions.take(caller.owner, can, one_caller=one_caller)

    async def give_back(self, session: "OneCallSession", *, usable: bool) -> None:
        """Return a session after its call."""
        await self._sessions.give_back(session, usable=usable)


# --- sessions with legacy servers --------------------------------------------------------------


class OneCallSession:
    """A session that serves one call at a time."""

    def __init__(
        self,
        settings: UpstreamSettings,
        on_change: OnChange,
        owner: str,
        can: frozenset[Capability],
        *,
        one_caller: bool = True,
    ) -> None:
        """Nothing is connected yet; `one_caller` if the owner is one caller and not many."""
        self.key: tuple[str, frozenset[Capability]] = (owner, can)
        self._one_caller = one_caller
        self.on_ask: Callable[[str, Mapping[str, Any], str], Any] | None = None
        """Answers what the server asks during the call; None between calls."""

        self.on_log: OnLog | None = None
        self.calls: int = 0
        """Calls that it has served."""

        self.client: Client = settings.client(
            era="legacy", answers=RawAnswers(self._ask, can), tasks=False,
            on_log=self._log, log_level="debug", on_change=on_change,
        )  # fmt: skip

    async def _ask(self, method: str, params: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        if self.on_ask is None:
            raise AnswerFailed("the server asked while no call was open")
        return await self.on_ask(method, params, key)

    async def _log(self, level: str, data: Any, logger: str | None) -> None:
        """Pass on a log message, unless it may be a late one of a call of somebody else.

        Callers without authentication are told apart by nothing: they share sessions.
        """
        if self.on_log is not None and (self._one_caller or self.calls == 1):
            await self.on_log(level, data, logger)

    async def call(self, call: PendingCall, on_progress: Progress | None) -> CallEndTurn:
        """Run a call to its end; what it asks is answered meanwhile."""
        self.calls += 1
        try:
            prepared = await self.client.prepare(SavedCall(call=call), on_progress=on_progress)
            return await drive(prepared.flow, prepared)
        except ClientError as error:
            return Stopped("lost", call, detail=str(error), sent=False)


class OneCallSessions:
    """The sessions with one server: those of open calls, and a few that wait for the next."""

    def __init__(self, settings: UpstreamSettings, on_change: OnChange) -> None:
        """No session is open yet."""
        self._settings = settings
        self._on_change = on_change
        self._open: set[OneCallSession] = set()
        self._idle: list[OneCallSession] = []

    async def take(
        self, owner: str, can: frozenset[Capability], *, one_caller: bool = True
    ) -> OneCallSession:
        """Return a session of this caller that declares this."""
        for session in reversed(self._idle):
            if session.key == (owner, can):
                self._idle.remove(session)
                self._open.add(session)
                return session
        if len(self._open) >= MAX_SESSIONS:
            raise TooManyCalls(f"too many calls of {self._settings.name} are open; try later", 10)
        session = OneCallSession(self._settings, self._on_change, owner, can, one_caller=one_caller)
        self._open.add(session)
        try:
            await session.client.__aenter__()
        except BaseException:
            self._open.discard(session)
            raise
        return session

    async def give_back(self, session: OneCallSession, *, usable: bool) -> None:
        """Keep a session for the next call, or end it."""
        session.on_ask = session.on_log = None
        self._open.discard(session)
        ended = [session]
        if usable:
            self._idle.append(session)
            ended, self._idle = self._idle[:-MAX_IDLE], self._idle[-MAX_IDLE:]
        for one in ended:
            await one.client.__aexit__()

    async def close(self) -> None:
        """End every session."""
        ended = [*self._open, *self._idle]
        self._open, self._idle = set(), []
        await asyncio.gather(*(one.client.__aexit__() for one in ended), return_exceptions=True)


def answered(
    call: PendingCall, params: Mapping[str, Any], answers: Mapping[str, Any]
) -> PendingCall:
    """Return a call with its params and with the answers to what it asked, as they came."""
    return replace(call, params=params, answers=dict(answers), rounds=call.rounds + 1)
