"""The HTTP client under the SDK's transport: the failure of one request fails one call.

In `mcp` 2.3 an exception of one POST ends the whole session. Here every failure of a request
becomes a response to that request, and its reason is kept under a name that no server can guess. To
be removed when the SDK fails only the request concerned.
"""

import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED

from antiphon.client.errors import CannotConnect
from antiphon.client.flow_types import Lost

LOST = 1
"""The code of a failed request: local, and outside every range of the protocol (ERR-04)."""

MAX_BODY = 32 * 1024 * 1024
"""Bytes of one reply that is not a stream; a bound against an endless one."""

TIMEOUT = httpx2.Timeout(30.0, read=None)
"""For connecting and writing. The time for a reply is bounded by the call."""

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_NOT_ERA_EVIDENCE = frozenset({401, 403, 407, 429})


@dataclass(slots=True)
class Failures:
    """The reasons of failed requests, by names that no server can guess."""

    _kept: dict[str, Lost] = field(default_factory=dict[str, Lost])
    where: str = ""
    """The URL of the last POST, without credentials and query."""

    nothing_there: bool = False
    """Whether the last response was a 404 without a JSON body."""

    def keep(self, lost: Lost) -> httpx2.Response:
        """Keep a reason and return the response that stands for it."""
        name = secrets.token_hex(8)
        self._kept[name] = lost
        error = {"code": LOST, "message": "connection failed", "data": name}
        return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": error})

    def take(self, code: int, data: object) -> Lost | None:
        """Return the reason of an error, if it was kept here."""
        return self._kept.pop(data, None) if code == LOST and isinstance(data, str) else None


class ContainedClient(httpx2.AsyncClient):
    """An HTTP client whose failed POSTs return a response instead of raising."""

    def __init__(self, failures: Failures, **options: Any) -> None:
        """Take where reasons are kept, and the options of `httpx2.AsyncClient`."""
        super().__init__(**options)
        self._failures = failures

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; the failure of a POST becomes a response that names it."""
        if request.method != "POST":
            return await super().send(request, **options)
        self._failures.where = where = _plain(request.url)
        self._failures.nothing_there = False
        try:
            response = await super().send(request, **options)
        except _NOT_SENT as error:
            why = f"{cannot_reach(where)} ({type(error).__name__}: {error})"
            return self._answer(request, Lost(sent=False, why=why))
        except httpx2.HTTPError as error:
            return self._failed(request, error, sent=True)
        except OAuthFlowError as error:
            return self._failed(request, error, sent=False)
        if _uninformative(response):
            why = _explain(response.status_code)
            await response.aclose()
            return self._answer(request, Lost(sent=response.status_code >= 500, why=why))
        self._failures.nothing_there = response.status_code == 404 and not _is_json(response)
        stream = response.stream
        if isinstance(stream, httpx2.AsyncByteStream):
            streaming = "text/event-stream" in response.headers.get("content-type", "")
            response.stream = _BoundedBody(stream, None if streaming else MAX_BODY)
        return response

    def _failed(self, request: httpx2.Request, error: Exception, *, sent: bool) -> httpx2.Response:
        why = str(error) or type(error).__name__
        return self._answer(request, Lost(sent=sent, why=f"{type(error).__name__}: {why}"))

    def _answer(self, request: httpx2.Request, lost: Lost) -> httpx2.Response:
        answer = self._failures.keep(lost)
        answer.request = request
        return answer


def _uninformative(response: httpx2.Response) -> bool:
    """Return whether the response is neither JSON-RPC nor a sign of the era (VER-23)."""
    status = response.status_code
    if status < 500 and status not in _NOT_ERA_EVIDENCE:
        return False
    return not _is_json(response)


def _is_json(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("application/json")


def _plain(url: httpx2.URL) -> str:
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))


def cannot_reach(where: str) -> str:
    """Return that no server was reached at a URL, and what to try."""
    return (
        f"cannot reach {where}: is the server running? Start it with "
        "`antiphon serve MODULE:SERVER`, or check the address"
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
        case CannotConnect():
            return cause
        case MCPError():
            lost = failures.take(cause.code, cause.error.data)
            why = lost.why if lost else cause.error.message
            if cause.code == CONNECTION_CLOSED:
                why = "the server ended the connection before it was ready"
            unreached = lost is not None and why.startswith(cannot_reach(where))
            reason = CannotConnect(why if unreached else f"{at}: {why}")
        case _:
            reason = CannotConnect(f"{at}: {type(cause).__name__}: {cause}")
    reason.__cause__ = cause
    return reason


def _explain(status: int) -> str:
    if status == 401:
        return "the server wants authorization (HTTP 401): pass auth= or headers="
    if status == 403:
        return "the server forbids this (HTTP 403): other credentials, scope or Origin are needed"
    return f"the server answered HTTP {status}"


class _BoundedBody(httpx2.AsyncByteStream):
    """A response body of bounded length; a network failure ends it."""

    def __init__(self, inner: httpx2.AsyncByteStream, limit: int | None) -> None:
        self._inner = inner
        self._left = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                if self._left is not None:
                    self._left -= len(chunk)
                    if self._left < 0:
                        return
                yield chunk
        except httpx2.TransportError:
            return

    async def aclose(self) -> None:
        await self._inner.aclose()


def contained_client(
    failures: Failures, *, headers: Mapping[str, str] | None, auth: httpx2.Auth | None
) -> ContainedClient:
    """Return the HTTP client for one connection; proxies are taken from the environment."""
    return ContainedClient(failures, headers=dict(headers or {}), auth=auth, timeout=TIMEOUT)
