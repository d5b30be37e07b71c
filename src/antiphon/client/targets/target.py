"""Where the server is: a URL, a command, or an object in this process, and how each is opened.

A target that is saved loses its credentials.
"""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO, TypedDict, cast
from urllib.parse import urlsplit

import anyio
import anyio.abc
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from pydantic_core import to_jsonable_python

from antiphon.client.errors import CannotConnect
from antiphon.client.http import MAX_EVENT, HttpDispatcher, RawDispatcher
from antiphon.client.sdk_shim import Failures, contained_client
from antiphon.client.stdio import child_server
from antiphon.client.targets.named import (
    Command,
    File,
    Module,
    NamedTarget,
    Url,
    parse_target,
)
from antiphon.client.targets.objects import NamelessTarget, stream_target

Notify = Callable[[str, Mapping[str, Any]], Awaitable[None]]


class InProcessServer(Protocol):
    """A server object: one request in, its result out, notifications meanwhile."""

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


class InProcessDispatcher:
    """A dispatcher that calls a server object directly, without bytes, streams or ids."""

    def __init__(self, server: InProcessServer) -> None:
        """Take the server object."""
        self._server = server
        self._on_notify: OnNotify | None = None
        self._intercept: OnNotifyIntercept | None = None
        self._requests = 0

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Serve one request in the caller's task: cancelling it cancels the round."""
        # A copy in JSON values: the server may neither see other types nor change the caller's.
        out = to_jsonable_python(params or {})
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
            timeout = options.get("timeout")
            with nullcontext() if timeout is None else anyio.fail_after(timeout):
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
            # The session reads nothing from the context of a notification.
            await self._on_notify(cast("Any", None), method, params)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Ignore it: the modern era has no client notifications but cancelling."""

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Wait until cancelled; requests are served in their callers' tasks."""
        self._on_notify, self._intercept = on_notify, on_notify_intercept
        task_status.started()
        await anyio.sleep_forever()


class Target(Protocol):
    """A place a connection can be opened to."""

    @property
    def origin(self) -> str:
        """The key of its era; empty if the era is not remembered."""
        ...

    @property
    def address(self) -> str:
        """Where the server is, as shown to a person; empty within this process."""
        ...

    @property
    def name(self) -> str | list[str] | None:
        """The URL without credentials, or the words of the command; none within this process."""
        ...

    @property
    def saved(self) -> Url | None:
        """How a saved call refers to it: by its URL, if it has one."""
        ...

    @property
    def cancels_by_closing(self) -> bool:
        """Whether a request is cancelled by closing it, without a notification."""
        ...

    async def open(self, stack: AsyncExitStack, failures: Failures) -> RawDispatcher:
        """Open the connection within `stack`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTarget:
    """A Streamable HTTP endpoint."""

    url: Url
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    auth: httpx2.Auth | None = None
    client: httpx2.AsyncClient | None = None
    """The user's own; its failures end the connection."""

    not_done: frozenset[int] = frozenset()
    """Statuses with which this server, or what stands before it, says that it has not acted."""

    proxies: bool = True
    """Whether the proxies that the environment names are used."""

    @property
    def origin(self) -> str:
        parts = urlsplit(self.url.text)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{host}{port}"

    @property
    def address(self) -> str:
        return self.origin

    @property
    def name(self) -> str:
        return self.saved.text

    @property
    def saved(self) -> Url:
        return self.url.without_credentials

    @property
    def cancels_by_closing(self) -> bool:
        return True

    async def open(self, stack: AsyncExitStack, failures: Failures) -> RawDispatcher:
        url, client = self.url.text, self.client
        if client is None:
            client = await stack.enter_async_context(
                contained_client(
                    failures,
                    url,
                    headers=self.headers,
                    auth=self.auth,
                    not_done=self.not_done,
                    proxies=self.proxies,
                )
            )
        read, write = await stack.enter_async_context(
            streamable_http_client(url, http_client=client, max_sse_event_size=MAX_EVENT)
        )
        sdk = JSONRPCDispatcher(read, write)
        return HttpDispatcher(url, client, sdk, self.not_done)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTarget:
    """A server started as a child process, over its standard streams."""

    command: tuple[str, ...]
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    errlog: TextIO | None = None

    @property
    def origin(self) -> str:
        # A command may start another program each time: its era is not remembered.
        return ""

    @property
    def address(self) -> str:
        return " ".join(self.command)

    @property
    def name(self) -> list[str]:
        return list(self.command)

    @property
    def saved(self) -> None:
        # Whoever resumes the call names the command: a file must not choose what is run.
        return None

    @property
    def cancels_by_closing(self) -> bool:
        return False

    async def open(self, stack: AsyncExitStack, failures: Failures) -> RawDispatcher:
        child = child_server(
            self.command, env=self.env, cwd=self.cwd, errlog=self.errlog, failures=failures
        )
        try:
            server = await stack.enter_async_context(child)
        except (OSError, ValueError) as error:
            raise CannotConnect(f"cannot start {self.command[0]!r}: {error}") from error
        return JSONRPCDispatcher(*server.streams)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTarget(NamelessTarget):
    """A server object in this process."""

    server: InProcessServer

    @property
    def cancels_by_closing(self) -> bool:
        return True

    async def open(self, stack: AsyncExitStack, failures: Failures) -> RawDispatcher:
        running = getattr(self.server, "running", None)
        if callable(running):
            # The server's store stays open as long as this connection.
            await stack.enter_async_context(cast("AbstractAsyncContextManager[None]", running()))
        return InProcessDispatcher(self.server)


class TargetOptions(TypedDict, total=False):
    """What a target may need besides its name."""

    headers: Mapping[str, str] | None
    auth: Any
    http_client: Any
    proxies: bool
    not_done: Iterable[int]
    env: Mapping[str, str] | None
    cwd: str | os.PathLike[str] | None
    errlog: TextIO | None


def read_target(target: object, options: TargetOptions) -> Target:
    """Return the target of a URL, a command, a server object, streams or a transport.

    Raises:
        CannotConnect: It is none of them.
        TypeError: There is no such option.
    """
    unknown = options.keys() - TargetOptions.__optional_keys__
    if unknown:
        raise TypeError(f"Client has no option {', '.join(sorted(unknown))}")
    if isinstance(target, str):
        target = parse_target(target)
    if isinstance(target, NamedTarget):
        return _named(target, options)
    if callable(getattr(target, "exchange", None)):
        return LocalTarget(server=cast("InProcessServer", target))
    streams = stream_target(target)
    if streams is not None:
        return streams
    if isinstance(target, Sequence) and not isinstance(target, bytes | bytearray):
        words = tuple(str(word) for word in cast("Sequence[object]", target))
        return _command(Command(words), options)
    raise CannotConnect(
        f"{type(target).__name__} is not a target: pass a URL, a command, a Server, a server of "
        "the official SDK or of FastMCP, or streams or a transport of the SDK"
    )


def _named(target: NamedTarget, options: TargetOptions) -> Target:
    match target:
        case Url():
            return HttpTarget(
                url=target,
                headers=options.get("headers") or {},
                auth=options.get("auth"),
                client=options.get("http_client"),
                not_done=frozenset(options.get("not_done") or ()),
                proxies=options.get("proxies", True),
            )
        case File():
            if not Path(target.path).is_file():
                raise CannotConnect(f"there is no file {target.path}")
            return _command(target.command, options)
        case Module():
            return _command(target.command, options)
        case Command():
            return _command(target, options)
        case _:
            raise TypeError(f"{type(target).__name__} names no server")


def _command(command: Command, options: TargetOptions) -> CommandTarget:
    cwd = options.get("cwd")
    return CommandTarget(
        command=command.words,
        env=options.get("env"),
        cwd=os.fspath(cwd) if cwd is not None else None,
        errlog=options.get("errlog"),
    )
