"""Requests over HTTP: a modern one is a POST in the caller's task, a legacy one is the SDK's.

A modern request and its response are one HTTP exchange, so nothing has to be correlated; through
the SDK's transport it would cost half as much again. Redirects are left to the SDK, which knows
which ones may be followed.
"""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from http import HTTPStatus
from typing import Any, Protocol, cast

import anyio
import anyio.abc
import httpx2
import msgspec
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    REQUEST_TIMEOUT,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry.propagate import inject
from opentelemetry.trace import Span, SpanKind, StatusCode, get_tracer
from pydantic_core import to_jsonable_python

from antiphon.outbound.http_client import COMPRESSED, is_compressed
from antiphon.protocol.text import preview

logger: logging.Logger = logging.getLogger("antiphon.client")

MAX_EVENT = 16 * 1024 * 1024
"""Bytes of one event of a stream: enough for a result with an image."""

MAX_BODY = 32 * 1024 * 1024
"""Bytes of one reply that is not a stream; a bound against an endless one."""

MAX_SHOWN = 300
"""Characters of a refusal's body that an error text shows."""

TOO_LARGE = f"the reply is larger than {MAX_BODY >> 20} MiB"


class UnreadableReply(MCPError):
    """What came back is not an answer to the request: cut, garbled, or of somebody else.

    The server may have acted on the request all the same.
    """

    def __init__(self, why: str) -> None:
        """Say what came instead."""
        super().__init__(code=CONNECTION_CLOSED, message=why)


class StatusRefusal(MCPError):
    """A reply with an error status and without a JSON-RPC error: nobody says what was done."""

    def __init__(self, status: int, body: bytes, *, acted: bool = True) -> None:
        """Take the status, the body, and whether the server may have acted all the same."""
        code = METHOD_NOT_FOUND if status == 404 else INTERNAL_ERROR
        super().__init__(code=code, message=refusal(status, body))
        self.acted: bool = acted


_NOT_ACTED = frozenset({401, 405, 407, 411, 413, 414, 415, 417, 421, 426, 428, 429, 431})
"""Statuses that say, whoever sends them, that the request itself was not taken."""


def acted_on(response: httpx2.Response, not_done: frozenset[int] = frozenset()) -> bool:
    """Return whether the server may have acted on a request that was refused by status alone."""
    status = response.status_code
    unauthorized = status == 403 and "www-authenticate" in response.headers
    return status not in _NOT_ACTED and status not in not_done and not unauthorized


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


# --- modern requests ---------------------------------------------------------------------------

# A bound on the bytes that arrive says nothing about what they unpack to.
_HEADERS = {
    "accept": "application/json, text/event-stream",
    "accept-encoding": "identity",
    "content-type": "application/json",
}
RAW = {"antiphon.raw": True}
"""Marks a request whose reply is read here, and not by the SDK."""

_STATUSES = frozenset(HTTPStatus)
_encode = msgspec.json.Encoder(enc_hook=to_jsonable_python).encode
_decode = msgspec.json.Decoder().decode
_tracer = get_tracer("antiphon.client")


class HttpDispatcher:
    """Sends modern requests itself, and hands everything else to the SDK's dispatcher."""

    def __init__(
        self,
        url: str,
        client: httpx2.AsyncClient,
        sdk: RawDispatcher,
        not_done: frozenset[int] = frozenset(),
    ) -> None:
        """Take the endpoint, the HTTP client, and the SDK's dispatcher over the same client.

        With the statuses of `not_done` a server says that it has not acted.
        """
        self._not_done = not_done
        self._url = httpx2.URL(url)
        self._client = client
        self._sdk = sdk
        self._requests = 0
        self._redirected = False
        self._on_notify: OnNotify | None = None
        self._intercept: OnNotifyIntercept | None = None

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run the SDK's dispatcher."""
        self._on_notify, self._intercept = on_notify, on_notify_intercept
        await self._sdk.run(on_request, on_notify, on_notify_intercept, task_status=task_status)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Send a notification; only legacy sessions have them."""
        await self._sdk.notify(method, params, opts)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send one request; cancelling the caller closes it, which cancels it at the server.

        Raises:
            MCPError: An error of the server, a failed connection, or a timeout.
        """
        options = opts or {}
        version = (options.get("headers") or {}).get(MCP_PROTOCOL_VERSION_HEADER)
        if self._redirected or version not in MODERN_PROTOCOL_VERSIONS:
            return await self._sdk.send_raw_request(method, params, opts)
        try:
            with _within(options.get("timeout")):
                result = await self._exchange(method, params or {}, options)
        except TimeoutError:
            text = f"Request {method!r} timed out"
            raise MCPError(code=REQUEST_TIMEOUT, message=text) from None
        if result is None:
            self._redirected = True
            return await self._sdk.send_raw_request(method, params, opts)
        return result

    async def _exchange(
        self, method: str, params: Mapping[str, Any], options: CallOptions
    ) -> dict[str, Any] | None:
        """Return the result of one request, or None if it was redirected."""
        self._requests += 1
        id = options.get("request_id", self._requests)
        meta = dict(params.get("_meta") or {})
        on_progress = options.get("on_progress")
        if on_progress is not None:
            meta["progressToken"] = id
        with _tracer.start_as_current_span(
            _span_name(method, params),
            kind=SpanKind.CLIENT,
            attributes=_span_attributes(method, params, id),
            record_exception=False,  # the text of an error is the server's own
            set_status_on_exception=False,
        ) as span:
            inject(meta)
            message = {
                "jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": meta},
            }  # fmt: skip
            try:
                async with self._posted(message, options) as response:
                    if response.has_redirect_location:
                        return None
                    if is_compressed(response):
                        raise MCPError(code=CONNECTION_CLOSED, message=COMPRESSED)
                    result = await self._reply(response, id, on_progress)
                if result.get("isError") is True:
                    _failed(span, "tool_error")
                return result
            except MCPError as error:
                span.set_attribute("rpc.response.status_code", str(error.code))
                _failed(span, str(error.code))
                raise
            except httpx2.HTTPError as error:
                _failed(span, type(error).__name__)
                why = f"{type(error).__name__}: {error}"
                raise MCPError(code=CONNECTION_CLOSED, message=why) from error
            except BaseException as error:
                _failed(span, type(error).__name__)
                raise

    @asynccontextmanager
    async def _posted(
        self, message: dict[str, Any], options: CallOptions
    ) -> AsyncGenerator[httpx2.Response]:
        headers = {**_HEADERS, **(options.get("headers") or {})}
        request = self._client.build_request(
            "POST", self._url, content=_encode(message), headers=headers, extensions=RAW
        )
        response = await self._client.send(request, stream=True, follow_redirects=False)
        try:
            yield response
        finally:
            await response.aclose()

    async def _reply(
        self, response: httpx2.Response, id: int | str, on_progress: ProgressFnT | None
    ) -> dict[str, Any]:
        media = response.headers.get("content-type", "").lower()
        if response.status_code >= 400:
            raise await _refusal(response, media, id, self._not_done)
        if media.startswith("application/json"):
            return read_result(await _body(response), id)
        if not media.startswith("text/event-stream"):
            raise UnreadableReply(unexpected(response))
        async for event in httpx2.EventSource(response, max_event_size=MAX_EVENT):
            if event.data and event.event == "message":
                message = _message(event.data)
                if "method" not in message:
                    return _result(message, id)
                await self._notified(message, id, on_progress)
        raise UnreadableReply("the event stream ended without a response")

    async def _notified(
        self, message: dict[str, Any], id: int | str, on_progress: ProgressFnT | None
    ) -> None:
        """Pass on a notification that belongs to a request; requests of the server are ignored."""
        method, params = message["method"], cast("object", message.get("params") or {})
        if "id" in message or not isinstance(params, dict) or not isinstance(method, str):
            return
        body = cast("dict[str, Any]", params)
        try:
            if method == "notifications/progress":
                if on_progress is not None and body.get("progressToken") == id:
                    total, text = body.get("total"), body.get("message")
                    await on_progress(float(body["progress"]), total, text)
            elif self._intercept is not None and self._intercept(method, body):
                return
            elif self._on_notify is not None:
                # The session reads nothing from the context of a notification.
                await self._on_notify(cast("Any", None), method, body)
        except Exception:
            logger.exception("a callback for %s failed", method)


def _span_name(method: str, params: Mapping[str, Any]) -> str:
    """Return the name of a request's span: a tool or a prompt is named in it."""
    name = params.get("name")
    return f"{method} {name}" if isinstance(name, str) else method


def _span_attributes(method: str, params: Mapping[str, Any], id: int | str) -> Mapping[str, str]:
    named = {"mcp.method.name": method, "jsonrpc.request.id": str(id)}
    name = params.get("name")
    if not isinstance(name, str):
        return named
    if method == "tools/call":
        return {**named, "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    return {**named, "gen_ai.prompt.name": name} if method == "prompts/get" else named


def _failed(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)


def _within(timeout: float | None) -> AbstractContextManager[object]:
    return nullcontext() if timeout is None else anyio.fail_after(timeout)


async def _body(response: httpx2.Response) -> bytes:
    parts: list[bytes] = []
    left = MAX_BODY
    async for part in response.aiter_bytes():
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise UnreadableReply(TOO_LARGE)
    return b"".join(parts)


def _message(data: bytes | str) -> dict[str, Any]:
    try:
        message = _decode(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableReply(f"the reply cannot be parsed: {error}") from error
    if not isinstance(message, dict):
        raise UnreadableReply("the reply is not an object")
    return cast("dict[str, Any]", message)


def read_result(body: bytes, id: int | str) -> dict[str, Any]:
    """Return the result in the body of a reply to the request with this id.

    Raises:
        UnreadableReply: It is not an answer to that request.
        MCPError: It is an error of the server.
    """
    return _result(_message(body), id)


def _result(message: dict[str, Any], id: int | str) -> dict[str, Any]:
    if not _same(message.get("id"), id):
        raise UnreadableReply("the reply has the id of another request")
    if "error" in message:
        raise _error(message)
    result = message.get("result")
    if message.get("jsonrpc") != "2.0" or not isinstance(result, dict):
        raise UnreadableReply("the reply has neither result nor error")
    return cast("dict[str, Any]", result)


def _same(found: object, id: int | str | None) -> bool:
    # `True == 1 == 1.0`, but they are other ids.
    return type(found) is type(id) and found == id


def _error(message: dict[str, Any]) -> MCPError:
    error = message["error"]
    members = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    code, text = members.get("code"), members.get("message")
    readable = type(code) is int and isinstance(text, str) and "result" not in message
    if not readable or message.get("jsonrpc") != "2.0":
        return UnreadableReply("the error of the reply cannot be read")
    return MCPError(code=cast("int", code), message=cast("str", text), data=members.get("data"))


async def _refusal(
    response: httpx2.Response, media: str, id: int | str, not_done: frozenset[int]
) -> MCPError:
    """Return the error of a response with an error status."""
    error = read_refusal(response.status_code, media, await _body(response), id)
    if isinstance(error, StatusRefusal):
        error.acted = acted_on(response, not_done)
    return error


def read_refusal(status: int, media: str, body: bytes, id: int | str | None) -> MCPError:
    """Return the error of a reply with an error status.

    A server that refuses a request before it has read its id may leave it out.
    """
    if media.startswith("application/json"):
        try:
            message = _message(body)
        except UnreadableReply:
            return StatusRefusal(status, body)
        if message.get("id") is not None and not _same(message["id"], id):
            return UnreadableReply("the reply has the id of another request")
        if "error" in message:
            found = _error(message)
            return found if not isinstance(found, UnreadableReply) else StatusRefusal(status, body)
    return StatusRefusal(status, body)


def unexpected(response: httpx2.Response) -> str:
    """Say that a reply is of a kind that answers no request."""
    media = preview(response.headers.get("content-type", ""), 100)
    return f"the reply has status {response.status_code} and content type {media!r}"


def refusal(status: int, body: bytes) -> str:
    """Return a refusal by HTTP status as a person reads it: the status and how the body begins."""
    name = HTTPStatus(status).phrase if status in _STATUSES else ""
    words = f"HTTP {status} {name}".rstrip()
    shown = preview(body[: 8 * MAX_SHOWN].decode("utf-8", "replace"), MAX_SHOWN)
    return f"{words}: {shown}" if shown and shown != name else words
