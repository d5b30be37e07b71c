"""Tells telemetry now and then how many tasks, held calls and parked handlers there are."""

import asyncio
import logging
from collections.abc import Sized

from antiphon.engine.environment import Environment
from antiphon.errors import StoreError
from antiphon.ports import Overview, Telemetry

log: logging.Logger = logging.getLogger("antiphon")

EVERY = 10.0
"""Seconds between two looks."""

MOST_HELD = 10_000
"""Held calls are counted no further: each is one row to look at."""


class LevelReports:
    """Looks at what one server keeps while it runs."""

    def __init__(
        self, environment: Environment, telemetry: Telemetry, server: str, parked: Sized
    ) -> None:
        """Take whom to tell, under which name the store has the tasks, and what is parked here."""
        self._store = environment.store
        self._telemetry = telemetry
        self._server = server
        self._parked = parked
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look until it is stopped."""
        self._task = asyncio.create_task(self._look_often(), name="antiphon levels")

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def look(self) -> None:
        """Look once.

        Raises:
            StoreError: The store failed.
        """
        self._telemetry.level("parked", {"asleep": len(self._parked)})
        store = self._store
        if isinstance(store, Overview):
            self._telemetry.level("tasks", await store.tasks_by_status(self._server))
            held = await store.count_held(self._server, most=MOST_HELD)
            self._telemetry.level("held", {"waiting": held})

    async def _look_often(self) -> None:
        while True:
            try:
                await self.look()
            except StoreError as error:
                log.debug("levels are not known until the store is back: %s", error)
            await asyncio.sleep(EVERY)
