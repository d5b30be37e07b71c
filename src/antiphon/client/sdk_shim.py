"""The only patchwork on the official SDK (`mcp` 2.3), each part with the condition for its removal.

`CapabilityShim` can be deleted when `ClientSession` accepts the capabilities to declare, the
timeout of discovery, and an observer of raw notifications. `ConnectionTask` can be deleted when the
SDK's contexts may be left from another task than the one that entered them, and raise plain errors
instead of groups.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Generic, Protocol, TypeVar, cast

import anyio
import anyio.abc
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp_types import CLIENT_CAPABILITIES_META_KEY

from antiphon.client.errors import CannotConnect, InvalidResponse
from antiphon.client.http import Failures, connect_error
from antiphon.client.task_updates import TaskListeners

T = TypeVar("T")


class RawDispatcher(Protocol):
    """Sends requests and receives notifications as plain objects; the SDK's or one of ours."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]: ...

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None: ...

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None: ...


class CapabilityShim:
    """The dispatcher under the SDK's session: it declares exactly what the client can do.

    The session always declares form and URL elicitation together. Calls that may ask do not pass
    through the session, only discovery, the handshake, lists, completion and subscriptions.
    """

    def __init__(
        self,
        inner: RawDispatcher,
        capabilities: Mapping[str, Any],
        *,
        probe: float,
        listeners: TaskListeners,
    ) -> None:
        """Wrap a dispatcher.

        Args:
            inner: The dispatcher that is wrapped.
            capabilities: Declared on every request of the session.
            probe: Seconds allowed for discovery.
            listeners: Receive notifications about tasks, before the session.
        """
        self._inner = inner
        self._capabilities = dict(capabilities)
        self._probe = probe
        self._listeners = listeners

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send one request of the session."""
        options = cast("CallOptions", dict(opts or {}))
        if method == "server/discover":
            options["timeout"] = self._probe
        result = await self._inner.send_raw_request(method, self._declare(method, params), options)
        if result.get("resultType") == "task":
            raise InvalidResponse(f"{method} may not be answered with a task")
        return result

    def _declare(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        out = dict(params or {})
        meta = cast("dict[str, Any]", out.get("_meta") or {})
        if method == "initialize":
            # Extensions are declared in the modern era only.
            known = self._capabilities.items()
            out["capabilities"] = {name: value for name, value in known if name != "extensions"}
        elif CLIENT_CAPABILITIES_META_KEY in meta:
            out["_meta"] = {**meta, CLIENT_CAPABILITIES_META_KEY: self._capabilities}
        return out

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Send a notification."""
        await self._inner.notify(method, params, opts)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run the wrapped dispatcher; notifications about tasks are taken in order of arrival."""

        def intercept(method: str, params: Mapping[str, Any] | None) -> bool:
            if self._listeners.take(method, params):
                return True
            return on_notify_intercept is not None and on_notify_intercept(method, params)

        await self._inner.run(on_request, on_notify, intercept, task_status=task_status)


class ConnectionTask(Generic[T]):
    """Holds the SDK's contexts open in a task of its own until they are closed or fail."""

    def __init__(
        self, opener: Callable[[AsyncExitStack, Failures], Awaitable[T]], within: float
    ) -> None:
        """Take the function that opens the connection, and the seconds allowed for it."""
        self._opener = opener
        self._within = within
        self._failures = Failures()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._opened = False

    async def open(self) -> T:
        """Open the connection.

        Raises:
            CannotConnect: It cannot be opened, or not in time.
        """
        ready: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(ready), name="antiphon-connection")
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
        """Close the connection and wait for its task."""
        self._stop.set()
        if self._task is not None:
            # Shielded: a cancelled caller must not leave a child process or a socket behind.
            with anyio.CancelScope(shield=True):
                if not self._task.done() and not self._opened:
                    self._task.cancel()
                await asyncio.wait([self._task])

    async def _hold(self, ready: "asyncio.Future[T]") -> None:
        try:
            async with AsyncExitStack() as stack:
                opened = await self._opener(stack, self._failures)
                self._opened = True
                if not ready.done():
                    ready.set_result(opened)
                    await self._stop.wait()
        except BaseException as error:  # noqa: BLE001 - raised to the caller that opens it
            cause = _first(error)
            if isinstance(cause, asyncio.CancelledError):
                ready.cancel()
            elif not ready.done():
                ready.set_exception(connect_error(cause, self._failures))


def _first(error: BaseException) -> BaseException:
    """Return the first plain error of nested groups, a cancellation only if there is no other."""
    while isinstance(error, BaseExceptionGroup):
        inner = cast("tuple[BaseException, ...]", error.exceptions)
        plain = [each for each in inner if not isinstance(each, asyncio.CancelledError)]
        error = (plain or list(inner))[0]
    return error
