"""One open connection: the SDK's session in a task of its own, and a round through it.

The SDK's contexts must be left where they were entered, and their failures come as groups; a task
of our own takes both on itself, so that a caller's errors stay the caller's. Knows no person.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeAlias, cast

import anyio
import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

from antiphon.client.caching import Cache
from antiphon.client.dispatch import DECLARE, Delivered
from antiphon.client.errors import CannotConnect
from antiphon.client.flow_types import Call, Failure, Lost, Outcome, Reply
from antiphon.client.following import Heard, TaskNews
from antiphon.client.http import Failures, cannot_reach
from antiphon.client.task_values import CANCEL
from antiphon.client.task_values import METHODS as TASK_METHODS
from antiphon.core.request import Era
from antiphon.errors import HEADER_MISMATCH

Progress: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Takes progress, total and message; sync or async."""

_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)
_CLOSED = types.CONNECTION_CLOSED
_GONE = "Connection closed"
"""What the SDK's dispatcher says when the other side is gone: a child that died, for instance."""

_ENDED = "Session terminated"
"""What the SDK's transport makes of a 404 within a session (LEGACY-12)."""


class RawRequest(types.Request[dict[str, Any], str]):
    """Any request with params as they are: nothing is coerced, dropped or reordered."""

    method: str
    params: dict[str, Any]


class TaskRequest(RawRequest):
    """A request about a task, whose id travels in `Mcp-Name` too (TASK-28)."""

    name_param = "taskId"


class Link:
    """A session that is ready for calls."""

    def __init__(
        self, session: ClientSession, era: Era, failures: Failures, cache: Cache, news: TaskNews
    ) -> None:
        """Take a negotiated session."""
        self.session = session
        self.cache = cache
        self._news = news
        self.usable = True
        """False once the server is gone or has ended the session; a new one is made then."""

        self.era: Era = era
        self.failures = failures

    @property
    def server(self) -> dict[str, str] | None:
        """Name and version as the server says them."""
        info = self.session.server_info
        return {"name": info.name, "version": info.version} if info else None

    async def call(
        self, call: Call, declared: Mapping[str, Any], on_progress: Progress | None
    ) -> Outcome:
        """Send one round under a new id and say what came of it."""
        outcome = await self._send(call.sends, call.request(), declared, on_progress)
        if (
            isinstance(outcome, Failure)
            and outcome.code == HEADER_MISMATCH
            and call.sends == "tools/call"
        ):
            # Our view of the tool's header annotations is old: look again, try once (HDR-14).
            await self.session.list_tools()
            outcome = await self._send(call.sends, call.request(), declared, on_progress)
        return outcome

    async def cancel_task(self, id: str, declared: Mapping[str, Any]) -> Outcome:
        """Ask the server to cancel a task (TASK-50)."""
        return await self._send(CANCEL, {"taskId": id}, declared, None)

    async def listen_to_task(self, id: str, declared: Mapping[str, Any], heard: Heard) -> None:
        """Subscribe to a task and hand on what is told of it until the stream ends (TASK-52)."""
        params = {"notifications": {"taskIds": [id]}, "_meta": {DECLARE: dict(declared)}}
        self._news.want(id, heard)
        try:
            await self.session.send_request(
                RawRequest(method="subscriptions/listen", params=params), _ANYTHING
            )
        finally:
            self._news.forget(id)

    async def _send(
        self,
        method: str,
        params: Mapping[str, Any],
        declared: Mapping[str, Any],
        on_progress: Progress | None,
    ) -> Outcome:
        about_task = method in TASK_METHODS
        kind = TaskRequest if about_task else RawRequest
        # Tasks have no progress (TASK-54).
        progress = _progress(on_progress) if on_progress and not about_task else None
        request = kind(method=method, params={**params, "_meta": {DECLARE: dict(declared)}})
        try:
            await self.session.send_request(request, _ANYTHING, progress_callback=progress)
        except Delivered as delivered:
            return Reply(delivered.result)
        except MCPError as error:
            return self.outcome(error)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            return Lost(sent=True, why=type(error).__name__)
        raise AssertionError("the dispatcher hands every call over")

    def outcome(self, error: MCPError) -> Failure | Lost:
        """Tell a lost connection from an error of the server."""
        lost = self.failures.take(error.code, error.error.data)
        if lost is not None:
            return lost
        if error.code == _CLOSED:
            # The whole connection, or only the stream of this one request.
            self.usable = self.usable and error.error.message != _GONE
            return Lost(sent=True, why=error.error.message)
        if self.era == "legacy" and error.error.message == _ENDED:
            self.usable = False
            return Lost(sent=False, why="the server ended the session")
        return Failure(error.code, error.error.message, error.error.data)


class Connection:
    """Holds a link open in a task of its own until it is closed or dies."""

    def __init__(
        self, opener: Callable[[AsyncExitStack, Failures], Awaitable[Link]], within: float
    ) -> None:
        """Take what opens the link, and how long that may take."""
        self._opener = opener
        self._within = within
        self._failures = Failures()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether the link can still be used."""
        return self._task is not None and not self._task.done() and not self._stop.is_set()

    async def open(self) -> Link:
        """Open the link.

        Raises:
            CannotConnect: It cannot be opened, or not in time.
        """
        ready: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._own(ready), name="antiphon-connection")
        try:
            await asyncio.wait([ready], timeout=self._within)
            if not ready.done():
                at = f" at {self._failures.where}" if self._failures.where else ""
                raise CannotConnect(f"the server{at} was not ready within {self._within:g} s")
            return ready.result()
        except BaseException:
            ready.cancel()
            await self.close()
            raise

    async def close(self) -> None:
        """Close the link and wait until nothing is left of it."""
        self._stop.set()
        if self._task is not None:
            # Shielded: a cancelled caller must leave no child process and no open socket behind.
            with anyio.CancelScope(shield=True):
                if not self._task.done() and not self._opened:
                    self._task.cancel()
                await asyncio.wait([self._task])

    _opened = False

    async def _own(self, ready: asyncio.Future[Link]) -> None:
        try:
            async with AsyncExitStack() as stack:
                link = await self._opener(stack, self._failures)
                self._opened = True
                if not ready.done():
                    ready.set_result(link)
                    await self._stop.wait()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits; nobody else could
            cause = _first(error)
            if isinstance(cause, asyncio.CancelledError):
                ready.cancel()
            elif not ready.done():
                ready.set_exception(self._reason(cause))

    def _reason(self, cause: BaseException) -> BaseException:
        where = self._failures.where
        at = f"cannot connect to {where}" if where else "cannot connect"
        match cause:
            case CannotConnect() | MCPError() if self._failures.nothing_there:
                reason = CannotConnect(
                    f"{at}: nothing is there (HTTP 404): the path may be wrong; /mcp is usual"
                )
            case CannotConnect():
                return cause
            case MCPError():
                lost = self._failures.take(cause.code, cause.error.data)
                why = lost.why if lost else cause.error.message
                if cause.code == _CLOSED:
                    why = "the server ended the connection before it was ready"
                unreached = lost is not None and why.startswith(cannot_reach(where))
                reason = CannotConnect(why if unreached else f"{at}: {why}")
            case _:
                reason = CannotConnect(f"{at}: {type(cause).__name__}: {cause}")
        reason.__cause__ = cause
        return reason


def _progress(given: Progress) -> ProgressFnT:
    async def progress(progress: float, total: float | None, message: str | None) -> None:
        result = given(progress, total, message)
        if result is not None:
            await result

    return progress


def _first(error: BaseException) -> BaseException:
    """Find the first plain error in nested groups, leaving cancellations for last."""
    while isinstance(error, BaseExceptionGroup):
        inner = cast("tuple[BaseException, ...]", error.exceptions)
        plain = [each for each in inner if not isinstance(each, asyncio.CancelledError)]
        error = (plain or list(inner))[0]
    return error
