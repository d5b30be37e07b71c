"""Servers of other frameworks in this process, and the streams and transports of the official SDK.

Each is a target of a `Client`. A server object runs in a task of its own for as long as the
connection is open, behind a pair of streams in memory.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import anyio
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.memory import create_client_server_memory_streams

from antiphon.client.errors import CannotConnect
from antiphon.client.http import RawDispatcher
from antiphon.client.sdk_shim import Failures

_LOW_LEVEL = ("_lowlevel_server", "_mcp_server")
"""Where `MCPServer` and `FastMCP` keep the server that runs on streams; it has no public name."""

_STOP = 2.0
"""Seconds that a server may take to end after its streams were closed."""


class NamelessTarget:
    """What has no address: no saved call can refer to it."""

    __slots__ = ()

    @property
    def origin(self) -> str:
        """No origin."""
        return ""

    @property
    def address(self) -> str:
        """No address."""
        return ""

    @property
    def name(self) -> None:
        """No name."""
        return None

    @property
    def saved(self) -> None:
        """Nothing that could be saved."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTarget(NamelessTarget):
    """A pair of streams of the official SDK, or something that opens one."""

    open_streams: Callable[[], AbstractAsyncContextManager[Any]]

    @property
    def cancels_by_closing(self) -> bool:
        return False

    async def open(self, stack: AsyncExitStack, failures: Failures) -> RawDispatcher:
        streams = await stack.enter_async_context(self.open_streams())
        return JSONRPCDispatcher(streams[0], streams[1])


def stream_target(target: object) -> StreamTarget | None:
    """Return the target of streams, of a transport or of a server of another framework.

    A pair of streams and a transport that was made already serve one connection; a function that
    returns a transport is called for each.
    """
    low = low_level(target)
    if low is not None:
        return StreamTarget(open_streams=lambda: _running(target, low))
    if _is_pair(target):
        return StreamTarget(open_streams=lambda: nullcontext(target))
    if isinstance(target, AbstractAsyncContextManager):
        transport = cast("AbstractAsyncContextManager[Any]", target)
        return StreamTarget(open_streams=_once(transport))
    if callable(target):
        return StreamTarget(open_streams=lambda: _made(target))
    return None


def _is_pair(target: object) -> TypeGuard[tuple[Any, Any]]:
    """Return whether this is what an SDK transport yields: where to read, and where to write."""
    if not isinstance(target, tuple) or len(cast("tuple[object, ...]", target)) != 2:
        return False
    read, write = cast("tuple[object, object]", target)
    return callable(getattr(read, "receive", None)) and callable(getattr(write, "send", None))


def _once(
    transport: AbstractAsyncContextManager[Any],
) -> Callable[[], AbstractAsyncContextManager[Any]]:
    left = [transport]

    def take() -> AbstractAsyncContextManager[Any]:
        if not left:
            raise CannotConnect(
                "this transport was used by a connection that has ended: give Client a function "
                "that makes a new one, such as lambda: stdio_client(parameters)"
            )
        return left.pop()

    return take


def _made(make: Callable[[], object]) -> AbstractAsyncContextManager[Any]:
    made = make()
    if not isinstance(made, AbstractAsyncContextManager):
        raise CannotConnect(
            f"the function returned a {type(made).__name__}, not a transport of the official SDK"
        )
    return cast("AbstractAsyncContextManager[Any]", made)


# --- servers of other frameworks -----------------------------------------------------------------


def low_level(target: object) -> Any | None:
    """Return the part that runs on streams, if this is a server object of another framework."""
    for candidate in (*(getattr(target, name, None) for name in _LOW_LEVEL), target):
        makes_options = getattr(candidate, "create_initialization_options", None)
        if callable(makes_options) and callable(getattr(candidate, "run", None)):
            return candidate
    return None


@asynccontextmanager
async def _running(server: object, low: Any) -> AsyncGenerator[tuple[Any, Any]]:
    """Run a server on streams in memory; what it opens for itself is closed after it has ended."""
    lifespan = getattr(server, "_lifespan_manager", None)  # FastMCP opens its own once per server
    life: Any = lifespan() if callable(lifespan) else nullcontext()
    async with life, create_client_server_memory_streams() as (ours, theirs):
        ended = anyio.Event()

        async def serve() -> None:
            try:
                await low.run(*theirs, low.create_initialization_options())
            finally:
                ended.set()

        async with anyio.create_task_group() as group:
            group.start_soon(serve)
            try:
                yield ours
            finally:
                with anyio.CancelScope(shield=True):
                    await ours[1].aclose()
                    await theirs[1].aclose()
                    with anyio.move_on_after(_STOP):
                        await ended.wait()
                group.cancel_scope.cancel()
