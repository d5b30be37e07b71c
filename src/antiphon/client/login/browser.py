"""Signing in with a browser on this machine, which comes back to an address of this machine."""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, cast
from urllib.parse import parse_qs, urlsplit

from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import AuthorizationCodeResult
from pydantic import AnyUrl

from antiphon.client.login.provider import (
    LOGIN_SECONDS,
    LoginKeeper,
    LoginProvider,
    client_metadata,
    read_kept,
)

HOST, PATH = "127.0.0.1", "/callback"

_REQUEST_BYTES = 16 * 1024
_DONE = b"You are signed in. You can close this page."
_NOT_DONE = b"You are not signed in. You can close this page."


class BrowserSignIn(LoginProvider):
    """A login for which a person signs in with a browser."""

    asks: ClassVar[bool] = True

    def __init__(
        self, url: str, keeper: LoginKeeper, open_page: Callable[[str], Awaitable[None]]
    ) -> None:
        """Sign in to the server at a URL; `open_page` sends the person to a page."""
        self._open_page = open_page
        self._listener = RedirectListener(_port_of(read_kept(keeper.load()).client))
        super().__init__(
            url,
            keeper,
            client_metadata(
                redirect_uris=[AnyUrl(self._listener.url)],
                grant_types=["authorization_code", "refresh_token"],
            ),
            send_person=self._send_person,
            came_back=self._listener.wait,
        )

    def fits(self, client: dict[str, Any]) -> bool:
        """Whether a kept registration is for the address that the browser comes back to."""
        return _port_of(client) == self._listener.port

    def close(self) -> None:
        """Stop listening for the browser; after the event loop has ended. Idempotent."""
        self._listener.close()

    async def _send_person(self, page: str) -> None:
        self.check_private(page)
        await self._listener.expect(parse_qs(urlsplit(page).query)["state"][0])
        await self._open_page(page)


def _port_of(client: dict[str, Any] | None) -> int:
    uris = cast("list[object]", (client or {}).get("redirect_uris") or [])
    return (urlsplit(str(uris[0])).port or 0) if uris else 0


class RedirectListener:
    """The address on this machine that the browser comes back to."""

    def __init__(self, port: int = 0) -> None:
        """Take a port, or any where it is taken; nobody listens yet."""
        self._socket = _bound(port) or _bound(0)
        assert self._socket is not None, "some port is free"
        self.port: int = int(self._socket.getsockname()[1])
        self._server: asyncio.Server | None = None
        self._state = ""
        self._came: asyncio.Future[dict[str, str]] | None = None

    @property
    def url(self) -> str:
        """The redirect URI."""
        return f"http://{HOST}:{self.port}{PATH}"

    async def expect(self, state: str) -> None:
        """Listen for a browser that comes back with this state."""
        self._state, self._came = state, asyncio.get_running_loop().create_future()
        if self._server is None:
            self._server = await asyncio.start_server(
                self._serve, sock=self._socket, limit=_REQUEST_BYTES
            )

    async def wait(self) -> AuthorizationCodeResult:
        """Wait until the browser has come back; other visitors are turned away.

        Raises:
            OAuthFlowError: The person did not sign in, or not in time.
        """
        assert self._came is not None, "a browser is expected"
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                query = await self._came
        except TimeoutError:
            raise OAuthFlowError(f"nobody signed in within {LOGIN_SECONDS:g} s") from None
        if "code" not in query:
            raise OAuthFlowError(f"not signed in: {query.get('error', 'no code came back')[:100]}")
        return AuthorizationCodeResult(
            code=query["code"], state=query.get("state"), iss=query.get("iss")
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        query, came = await _query(reader), self._came
        if query is None or query.get("state") != self._state or came is None or came.done():
            _reply(writer, b"404 Not Found", _NOT_DONE)
            return
        _reply(writer, b"200 OK", _DONE if "code" in query else _NOT_DONE)
        came.set_result(query)

    def close(self) -> None:
        """Stop listening; from any thread. Idempotent."""
        if self._socket is not None:
            self._socket.close()


def _bound(port: int) -> socket.socket | None:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if sys.platform != "win32":  # a login a moment ago may have used it
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError:
        listening.close()
        return None
    return listening


async def _query(reader: asyncio.StreamReader) -> dict[str, str] | None:
    """Return the parameters of a visit to our page; None for any other visit."""
    try:
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError):
        return None
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    path, _, query = words[1].partition("?") if len(words) == 3 else ("", "", "")
    if words[0] != "GET" or path != PATH:
        return None
    return {name: values[0] for name, values in parse_qs(query).items()}


def _reply(writer: asyncio.StreamWriter, status: bytes, text: bytes) -> None:
    lines = [
        b"HTTP/1.1 " + status,
        b"content-type: text/plain",
        b"cache-control: no-store",
        b"referrer-policy: no-referrer",
        b"content-length: %d" % len(text),
        b"connection: close",
    ]
    writer.write(b"\r\n".join([*lines, b"", text]))
    writer.close()
