"""The HTTP client under the SDK's transport, made soft: one failed request fails one call.

In `mcp` 2.3 an exception of one POST ends the whole session. Here every failure of a request
becomes an answer to that request, and the true reason is kept aside under a name only we know. To
be removed when the SDK answers the one request itself. Knows no call and no answer.
"""

import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
from mcp.client.auth import OAuthFlowError

from antiphon.client.flow_types import Lost

LOST = 1
"""The code of a softened failure: local, and outside every range of the protocol (ERR-04)."""

MAX_BODY = 32 * 1024 * 1024
"""Bytes of one reply that is not a stream; a bound against a server that never ends it."""

TIMEOUT = httpx2.Timeout(30.0, read=None)
"""For connecting and writing. How long a reply may take is the call's own bound."""

_NEVER_LEFT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_NOT_ERA_EVIDENCE = frozenset({401, 403, 407, 429})


@dataclass(slots=True)
class Failures:
    """The true reasons of softened failures, by a name that no server can guess."""

    _kept: dict[str, Lost] = field(default_factory=dict[str, Lost])
    where: str = ""
    """The URL that was last posted to, without credentials and query."""

    nothing_there: bool = False
    """Whether the last answer was a 404 that no MCP server wrote."""

    def keep(self, lost: Lost) -> httpx2.Response:
        """Keep a reason and make the answer that stands for it."""
        name = secrets.token_hex(8)
        self._kept[name] = lost
        error = {"code": LOST, "message": "connection failed", "data": name}
        return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": error})

    def take(self, code: int, data: object) -> Lost | None:
        """Give the reason behind an error, if it is one of ours."""
        return self._kept.pop(data, None) if code == LOST and isinstance(data, str) else None


class SoftClient(httpx2.AsyncClient):
    """An HTTP client whose POSTs never raise."""

    def __init__(self, failures: Failures, **options: Any) -> None:
        """Take the place to keep reasons in, and what `httpx2.AsyncClient` takes."""
        super().__init__(**options)
        self._failures = failures

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send, and turn a failure into an answer that names it."""
        if request.method != "POST":
            return await super().send(request, **options)
        self._failures.where = where = _plain(request.url)
        self._failures.nothing_there = False
        try:
            response = await super().send(request, **options)
        except _NEVER_LEFT as error:
            why = f"{cannot_reach(where)} ({type(error).__name__}: {error})"
            return self._answer(request, Lost(sent=False, why=why))
        except httpx2.HTTPError as error:
            return self._softened(request, error, sent=True)
        except OAuthFlowError as error:
            return self._softened(request, error, sent=False)
        if _says_nothing(response):
            why = _explain(response.status_code)
            await response.aclose()
            return self._answer(request, Lost(sent=response.status_code >= 500, why=why))
        self._failures.nothing_there = response.status_code == 404 and not _is_json(response)
        stream = response.stream
        if isinstance(stream, httpx2.AsyncByteStream):
            streaming = "text/event-stream" in response.headers.get("content-type", "")
            response.stream = _EndsEarly(stream, None if streaming else MAX_BODY)
        return response

    def _softened(
        self, request: httpx2.Request, error: Exception, *, sent: bool
    ) -> httpx2.Response:
        why = str(error) or type(error).__name__
        return self._answer(request, Lost(sent=sent, why=f"{type(error).__name__}: {why}"))

    def _answer(self, request: httpx2.Request, lost: Lost) -> httpx2.Response:
        answer = self._failures.keep(lost)
        answer.request = request
        return answer


def _says_nothing(response: httpx2.Response) -> bool:
    """Tell whether the status is neither a JSON-RPC answer nor a hint at the era (VER-23)."""
    status = response.status_code
    if status < 500 and status not in _NOT_ERA_EVIDENCE:
        return False
    return not _is_json(response)


def _is_json(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("application/json")


def _plain(url: httpx2.URL) -> str:
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))


def cannot_reach(where: str) -> str:
    """Say that nobody listens there, and what to try."""
    return (
        f"cannot reach {where}: is the server running? Start it with "
        "`antiphon serve MODULE:SERVER`, or check the address"
    )


def _explain(status: int) -> str:
    if status == 401:
        return "the server wants authorization (HTTP 401): pass auth= or headers="
    if status == 403:
        return "the server forbids this (HTTP 403): other credentials, scope or Origin are needed"
    return f"the server answered HTTP {status}"


class _EndsEarly(httpx2.AsyncByteStream):
    """A response body whose network failure is an early end, and which is not read for ever."""

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


def soft_client(
    failures: Failures, *, headers: Mapping[str, str] | None, auth: httpx2.Auth | None
) -> SoftClient:
    """Make the HTTP client for one connection; proxies come from the environment."""
    return SoftClient(failures, headers=dict(headers or {}), auth=auth, timeout=TIMEOUT)
