"""One open connection: its session, and one request of a call sent on it.

Lists, completion and subscriptions use the SDK's session. Calls that may ask, and requests about
tasks, are sent below it: their results are read by the flow, not by the session's models.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version as version_of
from typing import Any, TypeAlias, cast

import anyio
import mcp_types as types
from mcp.client.caching import ClientResponseCache, InMemoryResponseCacheStore
from mcp.client.session import ClientSession, IncomingMessage
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    encode_header_value,
    mcp_param_headers,
    x_mcp_header_map,
)
from pydantic import ValidationError

from antiphon.client.answers import Answerer
from antiphon.client.eras import EraChoice, Eras, SessionCallbacks, negotiate
from antiphon.client.errors import (
    ConnectionLost,
    InvalidResponse,
    ReplyTimeExceeded,
    remote_error,
)
from antiphon.client.flow_types import ActionOutcome, Failure, Lost, PendingCall, Replied, Timeouts
from antiphon.client.http import RawDispatcher, StatusRefusal
from antiphon.client.read_asks import CANCEL
from antiphon.client.sdk_shim import CapabilityShim, Failures
from antiphon.client.targets.target import Target
from antiphon.client.task_updates import OnTaskMessage, TaskListeners
from antiphon.errors import HEADER_MISMATCH
from antiphon.ports import Clock
from antiphon.protocol.methods import TASK_METHODS
from antiphon.protocol.request import Era

Progress: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Takes progress, total and message; sync or async."""

OnLog: TypeAlias = Callable[[str, Any, str | None], Awaitable[None]]
"""Takes level, data and logger of a log message of the server."""

OnChange: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Takes method and params of a notification that belongs to no call."""

MAX_PAGES = 1000
"""Pages of one list; a bound against a server whose cursors never end."""

MAX_ENTRIES = 20_000
"""Entries of one list, counted while its pages are read."""

MAX_LIST_BYTES = 64 * 1024 * 1024
"""Bytes of one list as JSON, counted while its pages are read."""

_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The member of the params that the header `Mcp-Name` repeats; for tasks it is the id (TASK-28)."""

_CLOSED = "Connection closed"
"""The SDK's message when the whole connection is closed, for instance by a child that died."""

_REFUSED = "Server returned an error response"
"""The SDK's message for an error status; what the server said is kept beside it."""

_TERMINATED = "Session terminated"
"""The SDK's message for a 404 within a legacy session."""

_SDK_CANNOT_READ = (
    "Failed to parse JSON response",
    "Unexpected content type",
    "server answered a request with 202",
)
"""How the SDK's messages begin for replies that answer no request. `ContainedClient` finds them
first; a client of the user does not."""


class ServerConnection:
    """A negotiated session, and how one request of a call is sent on it."""

    def __init__(
        self,
        session: ClientSession,
        wire: RawDispatcher,
        settings: "ConnectionSettings",
        *,
        era: Era,
        failures: Failures,
        cache: ClientResponseCache,
        listeners: TaskListeners,
    ) -> None:
        """Take a negotiated session and the dispatcher below it."""
        self.session = session
        self.era: Era = era
        self.usable: bool = True
        """False after the connection or the session ended; a new one is opened then."""

        self.protocol: str = session.protocol_version or ""
        info = session.server_info
        self.server: dict[str, str] | None = (
            {"name": info.name, "version": info.version} if info else None
        )
        """Name and version that the server gives itself."""

        self._wire = wire
        self._failures = failures
        self._cache = cache
        self._listeners = listeners
        self._reply = settings.timeouts.reply
        self._closes = settings.target.cancels_by_closing
        self._meta = settings.meta(self.protocol)
        self._mirrored: dict[str, Any] = {}
        """Which arguments of a tool are repeated in headers, by tool."""

    def retire(self) -> None:
        """Note that the connection is closed."""
        self.usable = False

    # --- requests of calls ---------------------------------------------------------------------

    async def call(
        self, call: PendingCall, declared: Mapping[str, Any], on_progress: Progress | None
    ) -> ActionOutcome:
        """Send the next request of a call under a new id."""
        method, params = call.request()
        outcome = await self._send(method, params, declared, on_progress)
        mismatch = isinstance(outcome, Failure) and outcome.code == HEADER_MISMATCH
        if mismatch and method == "tools/call":
            # What is known of the tool's header annotations is old: list again, try once (HDR-14).
            await self._all_pages("tools/list", "list_tools", "tools", None)
            outcome = await self._send(method, params, declared, on_progress)
        return outcome

    async def request(
        self, method: str, params: Mapping[str, Any], declared: Mapping[str, Any]
    ) -> ActionOutcome:
        """Send one request as it is."""
        return await self._send(method, dict(params), declared, None)

    async def cancel_task(self, id: str, declared: Mapping[str, Any]) -> ActionOutcome:
        """Ask the server to cancel a task (TASK-50)."""
        return await self._send(CANCEL, {"taskId": id}, declared, None)

    async def subscribe_to_task(
        self, id: str, declared: Mapping[str, Any], listener: OnTaskMessage
    ) -> None:
        """Pass notifications about a task to a listener until the stream ends (TASK-52)."""
        method, params = "subscriptions/listen", {"notifications": {"taskIds": [id]}}
        self._listeners.add(id, listener)
        try:
            opts: CallOptions = {"headers": self._headers(method, params)}
            await self._wire.send_raw_request(method, self._with_meta(params, declared), opts)
        finally:
            self._listeners.remove(id)

    async def _send(
        self,
        method: str,
        params: dict[str, Any],
        declared: Mapping[str, Any],
        on_progress: Progress | None,
    ) -> ActionOutcome:
        opts: CallOptions = {"headers": self._headers(method, params)}
        if method in TASK_METHODS:
            # Requests about tasks are not cancelled with a notification, and have no progress
            # (TASK-50, TASK-54).
            opts["cancel_on_abandon"] = self._closes
        elif on_progress is not None:
            opts["on_progress"] = _progress(on_progress)
        try:
            sent = self._with_meta(params, declared)
            return Replied(await self._wire.send_raw_request(method, sent, opts))
        except MCPError as error:
            return self.outcome(error)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            return Lost(sent=True, why=type(error).__name__)

    def _with_meta(self, params: dict[str, Any], declared: Mapping[str, Any]) -> dict[str, Any]:
        if self.era == "legacy":
            return params
        own = cast("dict[str, Any]", params.get("_meta") or {})
        meta = {**own, **self._meta, types.CLIENT_CAPABILITIES_META_KEY: declared}
        return {**params, "_meta": meta}

    def _headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        headers = {MCP_PROTOCOL_VERSION_HEADER: self.protocol}
        if self.era == "legacy":
            return headers
        headers[MCP_METHOD_HEADER] = method
        name = params.get("taskId" if method in TASK_METHODS else _NAMED_BY.get(method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
            mirrored = self._mirrored.get(name) if method == "tools/call" else None
            if mirrored:
                headers.update(mcp_param_headers(mirrored, params.get("arguments") or {}))
        return headers

    def outcome(self, error: MCPError) -> Failure | Lost:
        """Tell a lost connection from an error of the server."""
        lost = self._failures.take(error.code, error.error.data)
        if lost is not None:
            return lost
        if isinstance(error, StatusRefusal):
            return Lost(sent=error.acted, why=error.error.message)
        if error.code == types.CONNECTION_CLOSED:
            # The whole connection, or only the stream of this one request.
            self.usable = self.usable and error.error.message != _CLOSED
            return Lost(sent=True, why=self._failures.ended or error.error.message)
        if self.era == "legacy" and error.error.message == _TERMINATED:
            self.usable = False
            return Lost(sent=False, why="the server ended the session")
        if self.era == "legacy" and error.error.message.startswith(_SDK_CANNOT_READ):
            return Lost(sent=True, why=error.error.message)
        refused = error.error.message == _REFUSED and self._failures.refusal
        return Failure(error.code, refused or error.error.message, error.error.data)

    # --- what the session does -----------------------------------------------------------------

    async def pages(self, method: str, verb: str, field: str) -> list[Any]:
        """Return all items of a list; the first page as long as the server lets it be kept."""
        first = await self.cached(method, "")
        return await self._all_pages(method, verb, field, first)

    async def _all_pages(self, method: str, verb: str, field: str, first: Any) -> list[Any]:
        ask: Callable[..., Awaitable[Any]] = getattr(self.session, verb)
        found = first
        if found is None:
            generation = self._cache.capture(method, "")
            found = await self.bounded(ask(params=None))
            await self._cache.write(method, "", found, generation, "use")
        items: list[Any] = []
        size = 0
        for _ in range(MAX_PAGES):
            items.extend(getattr(found, field))
            size += len(found.model_dump_json())
            if len(items) > MAX_ENTRIES or size > MAX_LIST_BYTES:
                raise InvalidResponse(
                    f"the list has more than {MAX_ENTRIES} entries or {MAX_LIST_BYTES} bytes"
                )
            if found.next_cursor is None:
                break
            # Later pages are not kept: a cursor has a meaning for the server only.
            params = types.PaginatedRequestParams(cursor=found.next_cursor)
            found = await self.bounded(ask(params=params))
        else:
            raise InvalidResponse(f"the list has more than {MAX_PAGES} pages")
        if method == "tools/list":
            self._mirrored = {tool.name: x_mcp_header_map(tool.input_schema) for tool in items}
        return items

    async def cached(self, method: str, key: str) -> Any:
        """Return a result that the server allows to use again, or None."""
        return await self._cache.read(method, key)

    async def keep(self, method: str, key: str, result: types.CacheableResult) -> None:
        """Keep a result as long as the server allows."""
        await self._cache.write(method, key, result, self._cache.capture(method, key), "use")

    async def bounded(self, request: Awaitable[Any]) -> Any:
        """Await a request of the session within the time for a reply."""
        try:
            with anyio.fail_after(self._reply):
                return await request
        except TimeoutError:
            raise ReplyTimeExceeded(f"no reply within {self._reply:g} s", "reply") from None
        except ValidationError as error:
            raise InvalidResponse(f"{error.error_count()} faults in {error.title}") from error
        except MCPError as error:
            outcome = self.outcome(error)
            if isinstance(outcome, Lost):
                raise ConnectionLost(outcome.why, sent=outcome.sent) from error
            raise remote_error(outcome) from error


def _progress(given: Progress) -> ProgressFnT:
    async def progress(progress: float, total: float | None, message: str | None) -> None:
        result = given(progress, total, message)
        if result is not None:
            await result

    return progress


# --- opening -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """What a client says about its connections."""

    target: Target
    answerer: Answerer | None
    declared: Mapping[str, Any]
    timeouts: Timeouts
    era: EraChoice
    eras: Eras
    probe: float
    name: str
    log_level: types.LoggingLevel | None
    on_log: OnLog | None
    on_change: OnChange | None
    clock: Clock

    @property
    def info(self) -> dict[str, str]:
        """Name and version of this client."""
        return {"name": self.name, "version": version_of("antiphon")}

    def meta(self, protocol: str) -> dict[str, Any]:
        """Return the `_meta` of every modern request, without the capabilities."""
        meta: dict[str, Any] = {
            types.PROTOCOL_VERSION_META_KEY: protocol,
            types.CLIENT_INFO_META_KEY: self.info,
        }
        if self.log_level is not None:
            meta[types.LOG_LEVEL_META_KEY] = self.log_level
        return meta

    async def open(self, stack: AsyncExitStack, failures: Failures) -> ServerConnection:
        """Open a connection within `stack` and negotiate its era.

        Raises:
            CannotConnect: No version in common, or the handshake failed.
            MCPError: The connection failed.
        """
        wire = await self.target.open(stack, failures)
        listeners = TaskListeners()
        callbacks = SessionCallbacks(self.answerer, self.timeouts.answer, self.target.address)
        cache = ClientResponseCache(
            store=InMemoryResponseCacheStore(),
            partition="",
            arm_id="",
            default_ttl_ms=0,
            clock=self.clock,
            share_public=False,
            negotiated_version=lambda: session.protocol_version,
        )
        shim = CapabilityShim(wire, self.declared, probe=self.probe, listeners=listeners)
        session = await stack.enter_async_context(
            ClientSession(
                dispatcher=cast("Any", shim),
                elicitation_callback=callbacks.elicit,
                sampling_callback=callbacks.sample,
                list_roots_callback=callbacks.roots,
                logging_callback=self._log,
                message_handler=partial(self._receive, cache),
                client_info=types.Implementation.model_validate(self.info),
                log_level=self.log_level,
            )
        )
        era = await negotiate(session, self.era, self.eras, self.target.origin)
        if era == "legacy" and self.log_level and _logs(session):
            level = types.SetLevelRequestParams(level=self.log_level)
            await session.send_request(types.SetLevelRequest(params=level), types.EmptyResult)
        connection = ServerConnection(
            session, wire, self, era=era, failures=failures, cache=cache, listeners=listeners
        )
        stack.callback(connection.retire)
        return connection

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        if self.on_log is not None:
            await self.on_log(params.level, params.data, params.logger)

    async def _receive(self, cache: ClientResponseCache, message: IncomingMessage) -> None:
        if isinstance(message, Exception):
            return
        await cache.evict_for_notification(message)
        if self.on_change is None:
            return
        if isinstance(message, types.LoggingMessageNotification | types.ProgressNotification):
            return
        data = message.model_dump(by_alias=True, mode="json", exclude_none=True)
        await self.on_change(data["method"], data.get("params") or {})


def _logs(session: ClientSession) -> bool:
    served = session.server_capabilities
    return served is not None and served.logging is not None
