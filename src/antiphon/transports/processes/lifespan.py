"""The lifespan of an ASGI application: entered before its first request, left after its last."""

import asyncio
import logging
from typing import Any

from antiphon.transports.http1.exchange import AsgiMessage
from antiphon.transports.http1.runner import AsgiApp

_log = logging.getLogger("antiphon.http")


class LifespanFailed(Exception):
    """The application reported that it could not start; the text is its own."""


class Lifespan:
    """One lifespan of one application. An application that knows none is served without."""

    def __init__(self, app: AsgiApp) -> None:
        """Nothing is entered yet."""
        self._app = app
        self._state: dict[str, Any] = {}
        self._events: asyncio.Queue[str] = asyncio.Queue()
        self._answers: asyncio.Queue[AsgiMessage] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> dict[str, Any]:
        """Enter it; return the state that the application wants in the scopes of its requests.

        Raises:
            LifespanFailed: The application could not start.
        """
        self._task = asyncio.create_task(self._live(), name="lifespan")
        answer = await self._ask("lifespan.startup")
        if answer is not None and answer["type"] == "lifespan.startup.failed":
            await asyncio.wait({self._task})
            raise LifespanFailed(answer.get("message", ""))
        return self._state

    async def stop(self) -> None:
        """Leave it."""
        if self._task is not None and not self._task.done():
            await self._ask("lifespan.shutdown")
            await asyncio.wait({self._task})

    async def _ask(self, event: str) -> AsgiMessage | None:
        """Send an event; return the answer, or None when the application ended without one."""
        assert self._task is not None
        self._events.put_nowait(event)
        answering = asyncio.create_task(self._answers.get())
        await asyncio.wait({answering, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        answering.cancel()
        return None if self._answers.empty() else self._answers.get_nowait()

    async def _live(self) -> None:
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self._state,
        }
        try:
            await self._app(scope, self._receive, self._send)
        except Exception:  # noqa: BLE001 - ASGI: such an application is served without a lifespan
            _log.info("the application has no lifespan", exc_info=True)

    async def _receive(self) -> AsgiMessage:
        return {"type": await self._events.get()}

    async def _send(self, message: AsgiMessage) -> None:
        self._answers.put_nowait(message)
