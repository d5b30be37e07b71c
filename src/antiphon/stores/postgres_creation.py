"""New tasks that arrive together are written together, in one statement and one commit.

A commit costs a flush of the database's disk, and a statement a round trip, whatever they hold.
While tasks are being written those that arrive meanwhile wait, and are written next, all at once:
under load a flush is shared by many, and a task that comes alone is written at once. A statement
that takes long, on a connection that is dead maybe, keeps nobody else waiting: what has come after
it is written beside it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from antiphon.errors import StoreError
from antiphon.ports import NewTask

_TASKS = 100
_BYTES = 1024 * 1024
"""Of one statement. A task that is larger is written alone."""

_LONG = 0.1
"""Seconds after which a statement keeps nobody waiting any more."""

_Waiting: TypeAlias = tuple[NewTask, "asyncio.Future[None]"]


class TaskCreation:
    """Tasks of this process that wait to be written."""

    def __init__(self, write: Callable[[Sequence[NewTask]], Awaitable[object]]) -> None:
        """Take what writes tasks: all of them, or none and it raises."""
        self._write = write
        self._waiting: deque[_Waiting] = deque()
        self._writer: asyncio.Task[None] | None = None
        """Writes what waits, unless it has come to a statement that takes long."""

        self._writers: set[asyncio.Task[None]] = set()

    async def create(self, task: NewTask) -> None:
        """Return when a task is written.

        Raises:
            StoreError: It was not, or nobody knows.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((task, written))
        if self._writer is None or self._writer.done():
            self._begin()
        await written

    async def close(self) -> None:
        """Return when nothing is being written any more."""
        while self._writers:
            await asyncio.wait(set(self._writers))
        self._writer = None

    def _begin(self) -> None:
        self._writer = asyncio.create_task(self._write_all(), name="antiphon new tasks")
        self._writers.add(self._writer)
        self._writer.add_done_callback(self._writers.discard)

    def _go_on_beside(self) -> None:
        """Have another writer write what waits: this one takes long."""
        self._writer = None
        if self._waiting:
            self._begin()

    async def _write_all(self) -> None:
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        together: list[_Waiting] = []
        try:
            while self._writer is me and (together := self._next()):
                late = loop.call_later(_LONG, self._go_on_beside)
                try:
                    await self._write_together(together)
                finally:
                    late.cancel()
        except asyncio.CancelledError:
            # With the event loop: nobody is left to wait for ever.
            for _, written in (*together, *self._waiting):
                written.cancel()
            self._waiting.clear()
            raise

    async def _write_together(self, together: Sequence[_Waiting]) -> None:
        try:
            await self._write([task for task, _ in together])
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            if len(together) == 1 or (isinstance(error, StoreError) and error.retryable):
                for _, written in together:
                    _settle(written, error)
            else:
                await self._write_each(together)
        else:
            for _, written in together:
                _settle(written, None)

    async def _write_each(self, together: Sequence[_Waiting]) -> None:
        """Write one by one: none was taken because of one that cannot be kept."""
        for task, written in together:
            try:
                await self._write([task])
            except Exception as error:  # noqa: BLE001
                _settle(written, error)
            else:
                _settle(written, None)

    def _next(self) -> list[_Waiting]:
        """Return what is written in the next statement, without what nobody waits for any more."""
        together: list[_Waiting] = []
        size = 0
        while self._waiting and len(together) < _TASKS:
            task, written = self._waiting[0]
            size += len(task.state) + len(task.message)
            if together and size > _BYTES:
                break
            self._waiting.popleft()
            if not written.done():
                together.append((task, written))
        return together


def _settle(written: "asyncio.Future[None]", error: Exception | None) -> None:
    if written.done():
        return  # whoever waited has gone away
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)
