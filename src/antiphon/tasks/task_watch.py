"""Hearing of tasks that other processes changed. Owns when to look; the hub owns who is told.

While somebody here listens to tasks of a shared store, their times of update are looked up now and
then, and a change is announced as if it had happened here. Nobody listens: nothing is looked up.
A task is announced once when it is first listened to, so that a change between the listener's last
look and its subscription is not missed.
"""

import asyncio
import logging

from antiphon.errors import StoreError
from antiphon.subscriptions import Subscriptions
from antiphon.tasks.service import TaskService

log = logging.getLogger("antiphon")

_EVERY = 1.0
"""Seconds between two looks."""


class TaskWatch:
    """Looks after the tasks that are listened to in this process."""

    def __init__(self, service: TaskService, hub: Subscriptions, *, every: float = _EVERY) -> None:
        self._service = service
        self._hub = hub
        self._every = every
        self._seen: dict[str, float] = {}
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._loop = asyncio.create_task(self._run(), name="antiphon task watch")

    async def stop(self) -> None:
        """Look no more."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._hub.listened.wait()
            ids = self._hub.listened_tasks()
            if not ids:
                self._hub.listened.clear()
                self._seen = {}
                continue
            try:
                await self._look(ids)
            except StoreError:
                log.warning("tasks that are listened to cannot be looked up; trying again")
            await asyncio.sleep(self._every)

    async def _look(self, ids: list[str]) -> None:
        updated = await self._service.store.tasks_updated(ids)
        before, self._seen = self._seen, dict(updated)
        for id, at in updated.items():
            if before.get(id) != at:
                self._hub.task_changed(id)
