"""A legacy client on lines (stdio): one session, fed line by line."""

from collections.abc import Callable

import anyio
from mcp.server.runner import serve_loop
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from antiphon.errors import INVALID_REQUEST
from antiphon.protocol import messages
from antiphon.transports.legacy.handlers import ClientState, LegacyHandlers

WriteMessage = Callable[[bytes], None]
"""Writes one message; the newline is added."""

_BUFFER = 16


class LineSession:
    """The streams between our lines and the SDK's loop."""

    def __init__(
        self,
        handlers: LegacyHandlers,
        session: ClientState,
        write: WriteMessage,
    ) -> None:
        """Answer through `write`, which takes one message."""
        self._handlers = handlers
        self._session = session
        self._write = write
        self._to_sdk, self._sdk_reads = anyio.create_memory_object_stream[
            SessionMessage | Exception
        ](_BUFFER)
        self._sdk_writes, self._from_sdk = anyio.create_memory_object_stream[SessionMessage](
            _BUFFER
        )
        self._over = anyio.Event()

    async def feed(self, line: bytes) -> None:
        """Take one line: a handshake, a request, a notification or a response."""
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError:
            self._write(messages.error(None, INVALID_REQUEST, "Invalid Request"))
            return
        await self._to_sdk.send(SessionMessage(message))

    async def close(self) -> None:
        """End: running handlers are cancelled, what was answered is written."""
        self._to_sdk.close()
        await self._over.wait()

    async def run(self) -> None:
        """Serve until the lines end."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._write_all)
                await serve_loop(
                    self._handlers.sdk,
                    self._sdk_reads,
                    self._sdk_writes,
                    lifespan_state=self._session,
                    init_options=self._handlers.options(),
                )
        finally:
            self._to_sdk.close()
            self._session.close()
            self._over.set()

    async def _write_all(self) -> None:
        async with self._from_sdk:
            async for one in self._from_sdk:
                self._write(one.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
