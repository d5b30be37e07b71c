"""The only patchwork on the official SDK (`mcp` 2.3), each part with the condition for its removal.

`CapabilityShim` can be deleted when `ClientSession` accepts the capabilities to declare, the
timeout of discovery, and an observer of raw notifications.

`ConnectionTask` can be deleted when the SDK's contexts may be left from another task than the one
that entered them, and raise plain errors instead of groups.

`ContainedClient` can be deleted when an exception of one POST fails that request, and no longer the
whole session. Every failure becomes a response to its request, and the reason is kept in `Failures`
under a name that no server can guess.
"""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import anyio
import anyio.abc
import httpx2
import msgspec
from mcp.client.auth import OAuthFlowError
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CONNECTION_CLOSED

from antiphon.client.errors import CannotConnect, InvalidResponse
from antiphon.client.flow_types import Lost
from antiphon.client.http import (
    MAX_BODY,
    MAX_EVENT,
    RAW,
    RawDispatcher,
    StatusRefusal,
    UnreadableReply,
    acted_on,
    read_refusal,
    read_result,
    refusal,
    unexpected,
)
from antiphon.client.task_updates import TaskListeners
from antiphon.outbound.http_client import HttpClient, direct_connections, is_event_stream

T = TypeVar("T")

LOST = 1
"""The code of a failed request: local, and outside every range of the protocol (ERR-04)."""

TIMEOUT = httpx2.Timeout(30.0, read=None)
"""For connecting and writing. The time for a reply is bounded by the call."""

_NOT_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
)
_NOT_ERA_EVIDENCE = frozenset({401, 403, 407, 429})
_SESSION = "mcp-session-id"


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


@dataclass(slots=True)
class Failures:
    """The reasons of failed requests, by names that no server can guess."""

    _kept: dict[str, Lost] = field(default_factory=dict[str, Lost])
    url: httpx2.URL | None = None
    """The URL of the last POST."""

    refusal: str = ""
    """The last response to a POST, if it was an error status without a JSON-RPC error."""

    nothing_there: bool = False
    """Whether that was a 404."""

    ended: str = ""
    """Why the connection was ended from this side."""

    @property
    def where(self) -> str:
        """The URL of the last POST, without credentials and query."""
        if self.url is None:
            return ""
        return str(self.url.copy_with(username=None, password=None, query=None, fragment=None))

    def keep(self, lost: Lost) -> httpx2.Response:
        """Keep a reason and return the response that stands for it."""
        name = secrets.token_hex(8)
        self._kept[name] = lost
        error = {"code": LOST, "message": "connection failed", "data": name}
        return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": error})

    def take(self, code: int, data: object) -> Lost | None:
        """Return the reason of an error, if it was kept here."""
        return self._kept.pop(data, None) if code == LOST and isinstance(data, str) else None


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


# --- an HTTP client that contains failures ------------------------------------------------------


class ContainedClient(HttpClient):
    """An HTTP client whose failed POSTs return a response instead of raising.

    Every response is bounded, also those of the requests that OAuth makes, and none is unpacked.
    What answers no request is the failure of that request, and never an answer of the server.
    """

    def __init__(
        self, failures: Failures, *, not_done: frozenset[int] = frozenset(), **options: Any
    ) -> None:
        """Take where reasons are kept, the statuses that say "not done", and other options."""
        super().__init__(seconds=None, timeout=TIMEOUT, max_reply=MAX_BODY, streams=True, **options)
        self._failures = failures
        self._not_done = not_done

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; the failure of a POST becomes a response that names it."""
        if request.method != "POST":
            return await super().send(request, **options)
        failures = self._failures
        failures.url, failures.refusal, failures.nothing_there = request.url, "", False
        try:
            response = await super().send(request, **options)
            if response.status_code < 400:
                return await self._checked(request, response)
            return await self._refused(request, response)
        except _NOT_SENT as error:
            why = f"{cannot_reach(failures.where, error)} ({type(error).__name__}: {error})"
            return self._answer(request, Lost(sent=False, why=why))
        except UnreadableReply as error:
            return self._answer(request, Lost(sent=True, why=error.error.message))
        except httpx2.HTTPError as error:
            return self._failed(request, error, sent=True)
        except OAuthFlowError as error:
            return self._failed(request, error, sent=False)

    async def _checked(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """Return a response that the SDK can read to its end.

        Raises:
            UnreadableReply: It does not answer the request.
            httpx2.HTTPError: It was cut.
        """
        if RAW.keys() <= request.extensions.keys() or response.has_redirect_location:
            return response
        if is_event_stream(response):
            stream = cast("httpx2.AsyncByteStream", response.stream)
            response.stream = _ContainedBody(stream, _request_id(request))
            return response
        id = _request_id(request)
        if id is None:
            return response
        if not response.headers.get("content-type", "").lower().startswith("application/json"):
            await response.aclose()
            raise UnreadableReply(unexpected(response))
        try:
            read_result(await response.aread(), id)
        except UnreadableReply:
            raise
        except MCPError:
            pass  # an answer, if not a result
        return response

    async def _refused(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """Return a response with an error status, or what stands for it."""
        status, body = response.status_code, await response.aread()
        if request.headers.get(_SESSION) and status == 404:
            return response  # the session is over, and nothing was done
        media, id = response.headers.get("content-type", "").lower(), _request_id(request)
        error = read_refusal(status, media, body, id)
        if isinstance(error, UnreadableReply):
            raise error
        if not isinstance(error, StatusRefusal):
            return response
        failures = self._failures
        failures.refusal = refusal(status, body)
        failures.nothing_there = status == 404
        if status >= 500 or status in _NOT_ERA_EVIDENCE or not _negotiates(request):
            lost = Lost(
                sent=acted_on(response, self._not_done), why=_explain(status, failures.refusal)
            )
            return self._answer(request, lost)
        return response

    def _failed(self, request: httpx2.Request, error: Exception, *, sent: bool) -> httpx2.Response:
        why = str(error) or type(error).__name__
        return self._answer(request, Lost(sent=sent, why=f"{type(error).__name__}: {why}"))

    def _answer(self, request: httpx2.Request, lost: Lost) -> httpx2.Response:
        answer = self._failures.keep(lost)
        answer.request = request
        return answer


class _SentMessage(msgspec.Struct):
    """What tells a request from a notification, and a call from the handshake."""

    id: int | str | None = None
    method: str = ""


def _sent_message(request: httpx2.Request) -> _SentMessage:
    try:
        return msgspec.json.decode(request.content, type=_SentMessage)
    except (msgspec.DecodeError, httpx2.RequestNotRead):
        return _SentMessage()


def _request_id(request: httpx2.Request) -> int | str | None:
    return _sent_message(request).id


def _negotiates(request: httpx2.Request) -> bool:
    """Return whether the reply tells which era a server is of."""
    return _sent_message(request).method in ("initialize", "server/discover")


_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""How OpenSSL names an answer that is not TLS."""


def cannot_reach(where: str, error: BaseException | None = None) -> str:
    """Return that no server was reached at a URL, and what to try."""
    return f"cannot reach {where}: {_what_to_try(where, str(error or ''))}"


def _what_to_try(where: str, why: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in why:
        return "its certificate is not trusted here. Install the authority's certificate"
    if any(name in why for name in _NO_TLS):
        return f"it does not speak TLS. Write {where.replace('https://', 'http://', 1)}"
    if "Name or service not known" in why or "getaddrinfo failed" in why:
        return "its host name is not known. Check the address"
    return (
        "is the server running? Start it with `antiphon serve MODULE:SERVER`, or check the address"
    )


def connect_error(cause: BaseException, failures: Failures) -> BaseException:
    """Return the error for a connection that could not be opened."""
    where = failures.where
    at = f"cannot connect to {where}" if where else "cannot connect"
    match cause:
        case CannotConnect() | MCPError() if failures.nothing_there:
            reason = CannotConnect(
                f"{at}: nothing is there (HTTP 404): the path may be wrong; /mcp is usual"
            )
        case CannotConnect() if failures.refusal:
            reason = CannotConnect(f"{cause} ({failures.refusal})")
        case CannotConnect():
            return cause
        case MCPError():
            lost = failures.take(cause.code, cause.error.data)
            why = lost.why if lost else failures.refusal or cause.error.message
            if cause.code == CONNECTION_CLOSED:
                why = failures.ended or "the server ended the connection before it was ready"
            unreached = lost is not None and why.startswith(f"cannot reach {where}: ")
            reason = CannotConnect(why if unreached else f"{at}: {why}")
        case _:
            reason = CannotConnect(f"{at}: {type(cause).__name__}: {cause}")
    reason.__cause__ = cause
    return reason


def _explain(status: int, refused: str) -> str:
    if status == 401:
        return f"the server wants other credentials: pass an Authorization header ({refused})"
    if status == 403:
        return f"the server forbids this to these credentials or this Origin ({refused})"
    return f"the server answered {refused}"


_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")


class _ContainedBody(httpx2.AsyncByteStream):
    """The body of an event stream: a network failure ends it, and the SDK's session goes on.

    What cannot be read ends it, and so does the response to another request: the SDK would take
    them for the answer to this one.
    """

    def __init__(self, inner: httpx2.AsyncByteStream, id: int | str | None) -> None:
        self._inner = inner
        self._id = id

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for event in self._events():
                if self._id is not None and not _is_readable(event, self._id):
                    return
                yield event
        except httpx2.TransportError:
            return

    async def _events(self) -> AsyncIterator[bytes]:
        """Return the bytes event by event; those of one that is too large as they come."""
        held = bytearray()
        async for chunk in self._inner:
            begun = max(0, len(held) - 3)
            held += chunk
            done = 0
            for end in [found.end() for found in _EVENT_END.finditer(held, begun)]:
                yield bytes(held[done:end])
                done = end
            del held[:done]
            if len(held) > MAX_EVENT:
                yield bytes(held)
                held.clear()
        if held:
            yield bytes(held)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _is_readable(event: bytes, id: int | str) -> bool:
    """Return whether an event says nothing, or holds a message of the protocol for this request."""
    lines = [line[5:] for line in event.splitlines() if line.startswith(b"data:")]
    data = b"\n".join(lines).strip()
    if not data:
        return True
    try:
        message = msgspec.json.decode(data, type=_StreamedMessage)
        if message.method is None:
            read_result(data, id)
    except (msgspec.DecodeError, RecursionError, UnreadableReply):
        return False
    except MCPError:
        return True  # an answer, if not a result
    return message.jsonrpc == "2.0"


class _StreamedMessage(msgspec.Struct):
    """What tells a response in a stream from other messages."""

    jsonrpc: str
    method: str | None = None
    params: dict[str, Any] | None = None


def contained_client(
    failures: Failures,
    url: str,
    *,
    headers: Mapping[str, str] | None,
    auth: httpx2.Auth | None,
    not_done: frozenset[int],
    proxies: bool = True,
) -> ContainedClient:
    """Return the HTTP client for one connection, with or without the environment's proxies."""
    return ContainedClient(
        failures,
        not_done=not_done,
        plain_origin=url,
        headers=dict(headers or {}),
        auth=auth,
        transport=None if proxies else direct_connections(),
    )
