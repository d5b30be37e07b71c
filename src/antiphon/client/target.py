"""Where the server is: a URL, a command, or an object in this process. Owns how each is opened.

Knows no call and no answer. A target that is saved loses its credentials.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO, cast
from urllib.parse import urlsplit, urlunsplit

import httpx2
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

from antiphon.client.dispatch import Inner, InProcess, InProcessServer
from antiphon.client.errors import CannotConnect
from antiphon.client.http import Failures, soft_client

MAX_EVENT = 16 * 1024 * 1024
"""Bytes of one event of a stream; a result with an image passes, an endless one does not."""


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


class Target(Protocol):
    """A place a connection can be opened to."""

    @property
    def origin(self) -> str:
        """What its era is remembered by, and what a person is shown; empty if nothing fits."""
        ...

    @property
    def saved(self) -> str | list[str] | None:
        """How a saved call names it."""
        ...

    @property
    def hangs_up(self) -> bool:
        """Whether a request that is given up is closed without a word to the server."""
        ...

    async def open(self, stack: AsyncExitStack, failures: Failures) -> Inner:
        """Open it within `stack`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTarget:
    """A Streamable HTTP endpoint."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    auth: httpx2.Auth | None = None
    client: httpx2.AsyncClient | None = None
    """The user's own; its failures are not softened."""

    @property
    def origin(self) -> str:
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{host}{port}"

    @property
    def saved(self) -> str:
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    @property
    def hangs_up(self) -> bool:
        return True

    async def open(self, stack: AsyncExitStack, failures: Failures) -> Inner:
        client = self.client
        if client is None:
            client = await stack.enter_async_context(
                soft_client(failures, headers=self.headers, auth=self.auth)
            )
        read, write = await stack.enter_async_context(
            streamable_http_client(self.url, http_client=client, max_sse_event_size=MAX_EVENT)
        )
        return JSONRPCDispatcher(read, write)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTarget:
    """A server started as a child, spoken to over its standard streams."""

    command: tuple[str, ...]
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    errlog: TextIO | None = None

    @property
    def origin(self) -> str:
        # Each process of a command may be another program: nothing is remembered about it.
        return ""

    @property
    def saved(self) -> list[str]:
        return list(self.command)

    @property
    def hangs_up(self) -> bool:
        return False

    async def open(self, stack: AsyncExitStack, failures: Failures) -> Inner:
        parameters = StdioServerParameters(
            command=self.command[0],
            args=list(self.command[1:]),
            env=dict(self.env) if self.env is not None else None,
            cwd=self.cwd,
        )
        opened = stdio_client(parameters, self.errlog) if self.errlog else stdio_client(parameters)
        try:
            read, write = await stack.enter_async_context(opened)
        except (OSError, ValueError) as error:
            raise CannotConnect(f"cannot start {self.command[0]!r}: {error}") from error
        return JSONRPCDispatcher(read, write)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTarget:
    """A server object in this process."""

    server: InProcessServer

    @property
    def origin(self) -> str:
        return ""

    @property
    def saved(self) -> None:
        return None

    @property
    def hangs_up(self) -> bool:
        return True

    async def open(self, stack: AsyncExitStack, failures: Failures) -> Inner:
        running = getattr(self.server, "running", None)
        if callable(running):
            # Its store stays open as long as this connection.
            await stack.enter_async_context(cast("AbstractAsyncContextManager[None]", running()))
        return InProcess(self.server)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a target may need beside its name."""

    headers: Mapping[str, str] | None = None
    auth: Any = None
    http_client: Any = None
    env: Mapping[str, str] | None = None
    cwd: str | os.PathLike[str] | None = None
    errlog: TextIO | None = None


def read_target(target: object, access: Access) -> Target:
    """Tell a URL, a command (text or list) and a server object apart.

    Raises:
        CannotConnect: It is none of them.
    """
    if isinstance(target, str):
        text = target.strip()
        scheme, marks, _ = text.partition("://")
        if marks and _SCHEME.fullmatch(scheme):
            if scheme.lower() not in ("http", "https"):
                raise CannotConnect(
                    f"unknown scheme {scheme!r}: a URL begins with http:// or https://"
                )
            return HttpTarget(
                url=text,
                headers=access.headers or {},
                auth=access.auth,
                client=access.http_client,
            )
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise CannotConnect(f"the command cannot be read: {error}") from error
        return _command(words, access)
    if isinstance(target, Sequence) and not isinstance(target, bytes | bytearray):
        return _command([str(word) for word in cast("Sequence[object]", target)], access)
    if callable(getattr(target, "exchange", None)):
        return LocalTarget(server=cast("InProcessServer", target))
    raise CannotConnect(f"{type(target).__name__} is no target: give a URL, a command, or a Server")


def _command(words: Sequence[str], access: Access) -> CommandTarget:
    if not words:
        raise CannotConnect("the target is empty: give a URL or a command")
    return CommandTarget(
        command=tuple(words),
        env=access.env,
        cwd=os.fspath(access.cwd) if access.cwd is not None else None,
        errlog=access.errlog,
    )
