"""The way in for legacy clients. The official SDK is loaded behind it, never on import.

Loading takes up to two seconds and 40 MB. It happens in a thread after the server has started, so
that neither the start nor the first legacy client waits for it, and modern requests go on.
"""

import asyncio
import logging
import threading
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from antiphon.errors import INVALID_REQUEST
from antiphon.ports import Entropy
from antiphon.protocol import messages
from antiphon.protocol.request import Principal
from antiphon.transports.dispatcher import Dispatcher
from antiphon.transports.http.request import Receive, Scope, Send

if TYPE_CHECKING:
    from antiphon.transports.legacy.sessions import LegacySessions
    from antiphon.transports.legacy.stdio import LineSession, WriteMessage

_SESSIONS = "antiphon.transports.legacy.sessions"
_STDIO = Principal(transport="stdio")

PRELOAD_SECONDS = 3.0
"""After the start, whose first requests need the processor; a legacy one loads the SDK at once."""

SESSION_NOT_FOUND = "Session not found: initialize again"

_log = logging.getLogger("antiphon.legacy")


class _Identified(msgspec.Struct):
    id: str | int | None = None
    method: str = ""


_read_id = msgspec.json.Decoder(_Identified).decode


class LegacyRequest(NamedTuple):
    """An HTTP request of the earlier era; its access was checked and its body has been read."""

    scope: Scope
    receive: Receive
    send: Send
    body: bytes
    owner: Principal

    def header(self, name: bytes) -> str | None:
        """Read a header that may stand once."""
        for key, value in self.scope["headers"]:
            if key == name:
                return value.decode("latin-1").strip()
        return None

    @property
    def session(self) -> str | None:
        """The id of the session that it belongs to; None when it opens one."""
        return self.header(b"mcp-session-id")

    @property
    def id(self) -> str | None:
        """The id of the request in the body, as text; None for what gets no answer."""
        try:
            message = _read_id(self.body)
        except msgspec.DecodeError:  # the session says what is wrong with it
            return None
        return str(message.id) if message.method and message.id is not None else None

    async def refuse(self, status: int, text: str, code: int = INVALID_REQUEST) -> None:
        """Answer with a JSON-RPC error that belongs to no request."""
        body = messages.error(None, code, text)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


class SessionLink(Protocol):
    """The other workers of this machine: each session lives in one of them."""

    prefix: str
    """How the ids of this worker's sessions begin."""

    def owner_of(self, session: str) -> int | None:
        """Return which other worker a session lives in; None when it is ours or nobody's."""
        ...

    async def forward(self, worker: int, request: LegacyRequest) -> None:
        """Let another worker answer a request."""
        ...


class LegacyGateway:
    """Serves the earlier era for the transports of one server."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        entropy: Entropy,
        *,
        stateless: bool = False,
        link: SessionLink | None = None,
    ) -> None:
        """Serve a dispatcher; nothing is loaded yet.

        Args:
            dispatcher: The server.
            entropy: Makes the ids of sessions.
            stateless: Without sessions: any process can serve any request, and nothing is asked.
            link: The other workers, where there are some.
        """
        self._dispatcher = dispatcher
        self._entropy = entropy
        self._stateless = stateless
        self._link = link
        self._will_drain = False
        self._drained: asyncio.Event | None = None
        self._sessions: LegacySessions | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: asyncio.Lock | None = None
        self._preloading: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Count the sessions that are open over HTTP."""
        return len(self._sessions) if self._sessions is not None else 0

    # --- serving ------------------------------------------------------------------------------

    async def serve(self, request: LegacyRequest, *, opens: bool = False) -> None:
        """Serve a request, here or where its session lives; `opens` marks a handshake."""
        session = request.session
        if not self._stateless:
            worker = self._link.owner_of(session or "") if self._link is not None else None
            if self._link is not None and worker is not None:
                return await self._link.forward(worker, request)
            if session is None and not opens:
                return await request.refuse(400, "Initialize first, then send Mcp-Session-Id")
        return await self.serve_here(request)

    async def serve_here(self, request: LegacyRequest) -> None:
        """Serve a request in this process."""
        if self._sessions is None and request.session is not None and not self._stateless:
            return await request.refuse(404, SESSION_NOT_FOUND)
        return await (await self._ready()).handle(request)

    async def lines(self, write: "WriteMessage") -> "LineSession":
        """Begin a session over lines; it answers through the writer."""
        return (await self._ready()).lines(write, _STDIO)

    async def _ready(self) -> "LegacySessions":
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the sessions of an earlier event loop ended with it
            self._loop, self._sessions, self._lock = loop, None, asyncio.Lock()
        if self._sessions is not None:
            return self._sessions
        assert self._lock is not None
        async with self._lock:
            if self._sessions is None:
                module = await asyncio.to_thread(import_module, _SESSIONS)
                sessions: LegacySessions = module.LegacySessions(
                    self._dispatcher,
                    self._entropy,
                    stateless=self._stateless,
                    prefix=self._link.prefix if self._link is not None else "",
                )
                if self._will_drain:
                    sessions.will_drain()
                await sessions.start()
                self._sessions = sessions
        return self._sessions

    # --- lifetime -----------------------------------------------------------------------------

    def preload(self) -> None:
        """Load the SDK in the background, when the server has been running for some seconds."""
        loop = asyncio.get_running_loop()
        self._preloading = loop.call_later(PRELOAD_SECONDS, _load_in_thread)

    def will_drain(self) -> None:
        """Learn that `drain` is awaited before the end; otherwise streams are cut with it."""
        self._will_drain = True
        if self._sessions is not None:
            self._sessions.will_drain()

    async def drain(self, grace: float) -> None:
        """Let running legacy requests finish, for at most the grace; then end the sessions."""
        if self._sessions is not None and self._loop is asyncio.get_running_loop():
            self._drained = asyncio.Event()
            try:
                await self._sessions.drain(grace)
            finally:
                self._drained.set()

    async def stop(self) -> None:
        """End every session; a later client would begin anew. Idempotent."""
        if self._preloading is not None:
            self._preloading.cancel()
            self._preloading = None
        if self._drained is not None:
            # The HTTP server does not count requests that other workers have forwarded.
            await self._drained.wait()
            self._drained = None
        sessions, self._sessions = self._sessions, None
        if sessions is not None and self._loop is asyncio.get_running_loop():
            await sessions.stop()


def _load_in_thread() -> None:
    # A daemon: a process that ends meanwhile does not wait for it.
    threading.Thread(target=_load, name="antiphon preload", daemon=True).start()


def _load() -> None:
    with suppress(ImportError):  # the first legacy client gets this error, with its cause
        import_module(_SESSIONS)
