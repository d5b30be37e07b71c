"""Our dispatchers around the SDK's session: our word on capabilities, calls answered raw.

The SDK declares form and url together and rejects what its schema does not know before anybody can
see it. The seam it offers is the dispatcher; both faults are mended there. Knows no person.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

import anyio
import anyio.abc
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp_types import CLIENT_CAPABILITIES_META_KEY

from antiphon.client.errors import InvalidResponse
from antiphon.client.following import TaskNews
from antiphon.client.read_asks import ASKABLE
from antiphon.client.task_values import METHODS as TASK_METHODS

_RAW = ASKABLE | TASK_METHODS
"""Methods whose results the flow reads itself."""

DECLARE = "antiphon/declare"
"""A note inside our own house: the capabilities of one request. It never reaches the wire."""


class Delivered(Exception):
    """Carries the raw result of a call past the SDK's check to the flow, which does its own."""

    def __init__(self, result: object) -> None:
        """Take the result as it came."""
        super().__init__()
        self.result = result


class Inner(Protocol):
    """What is wrapped: the SDK's dispatcher or one of ours."""

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


class Exact:
    """A dispatcher that declares exactly what the client can do and hands calls over raw."""

    def __init__(
        self,
        inner: Inner,
        capabilities: Mapping[str, Any],
        probe: float,
        *,
        news: TaskNews,
        hangs_up: bool = False,
    ) -> None:
        """Wrap a dispatcher.

        Args:
            inner: What is wrapped.
            capabilities: Declared where a request says nothing else.
            probe: Bounds the discovery.
            news: Takes what the server tells of tasks.
            hangs_up: Whether a request that is given up is closed without a word to the server.
        """
        self._inner = inner
        self._capabilities = dict(capabilities)
        self._probe = probe
        self._news = news
        self._hangs_up = hangs_up

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send one request; raises `Delivered` for what the flow reads itself."""
        options = cast("CallOptions", dict(opts or {}))
        if method == "server/discover":
            options["timeout"] = self._probe
        if method in TASK_METHODS and not self._hangs_up:
            # The word for giving up a request is never said about tasks (TASK-50).
            options["cancel_on_abandon"] = False
        result = await self._inner.send_raw_request(method, self._declare(method, params), options)
        if method in _RAW:
            raise Delivered(result)
        if result.get("resultType") == "task":
            raise InvalidResponse(f"{method} may not be answered with a task")
        return result

    def _declare(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        out = dict(params or {})
        meta = dict(out.get("_meta") or {})
        declared = meta.pop(DECLARE, self._capabilities)
        if method == "initialize":
            # Extensions belong to the modern wire.
            out["capabilities"] = {k: v for k, v in declared.items() if k != "extensions"}
        elif CLIENT_CAPABILITIES_META_KEY in meta:
            meta[CLIENT_CAPABILITIES_META_KEY] = declared
        if meta:
            out["_meta"] = meta
        else:
            out.pop("_meta", None)
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
        """Run the wrapped dispatcher; what is told of tasks is taken in the order of arrival."""

        def intercept(method: str, params: Mapping[str, Any] | None) -> bool:
            if self._news.heed(method, params):
                return True
            return on_notify_intercept is not None and on_notify_intercept(method, params)

        await self._inner.run(on_request, on_notify, intercept, task_status=task_status)


Notify = Callable[[str, Mapping[str, Any]], Awaitable[None]]


class InProcessServer(Protocol):
    """A server in this process: one request in, its result out, notifications on the way."""

    async def exchange(
        self, method: str, params: Mapping[str, Any], notify: Notify
    ) -> Mapping[str, Any]:
        """Serve one modern request.

        Args:
            method: The JSON-RPC method.
            params: Its params with the whole envelope in `_meta`.
            notify: Takes the notifications that belong to this request, in order.

        Raises:
            Exception: With `code`, `message` and `data`: the JSON-RPC error.
        """
        ...


class InProcess:
    """A dispatcher straight into a server object: no bytes, no streams, no ids."""

    def __init__(self, server: InProcessServer) -> None:
        """Take the server."""
        self._server = server
        self._on_notify: OnNotify | None = None
        self._intercept: OnNotifyIntercept | None = None
        self._requests = 0

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Serve one request in the caller's own task: cancelling it cancels the round."""
        out = dict(params or {})
        options = opts or {}
        progress = options.get("on_progress")
        self._requests += 1
        if progress is not None:
            out["_meta"] = {**(out.get("_meta") or {}), "progressToken": self._requests}

        async def notify(name: str, body: Mapping[str, Any]) -> None:
            if name == "notifications/progress":
                if progress is not None:
                    total, text = body.get("total"), body.get("message")
                    await progress(float(body["progress"]), total, text)
            elif self._intercept is None or not self._intercept(name, body):
                await self._deliver(name, body)

        try:
            with anyio.fail_after(options.get("timeout")):
                return dict(await self._server.exchange(method, out, notify))
        except MCPError:
            raise
        except Exception as error:
            code, message = getattr(error, "code", None), getattr(error, "message", None)
            if not isinstance(code, int) or not isinstance(message, str):
                raise
            raise MCPError(code=code, message=message, data=getattr(error, "data", None)) from error

    async def _deliver(self, method: str, params: Mapping[str, Any]) -> None:
        if self._on_notify is not None:
            # The session's handler reads neither id nor transport from a notification's context.
            await self._on_notify(cast("Any", None), method, params)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Drop: the modern wire has no notification from a client but cancelling."""

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Stay until cancelled; requests are served in their callers' tasks."""
        self._on_notify, self._intercept = on_notify, on_notify_intercept
        task_status.started()
        await anyio.sleep_forever()
