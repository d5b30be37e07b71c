"""The runner: a worker of one process. A carrier brings tasks, the player runs them.

Owns their beginning and their end: the end of a worker lets running tasks finish and gives the
others back. With a carrier that may lose a call, it looks for tasks that nobody came for.
"""

import asyncio
import logging
from collections.abc import Mapping

from antiphon.errors import StoreError
from antiphon.ports import LateTasks
from antiphon.protocol.retry import back_off
from antiphon.tasks.calls import CarrierCalls, describe
from antiphon.tasks.held import HeldCalls
from antiphon.tasks.leases import PAUSES, LeaseCarrier
from antiphon.tasks.player import TaskPlayer
from antiphon.tasks.service import TaskService

log: logging.Logger = logging.getLogger("antiphon")

_OVERDUE = 10.0
"""Seconds after which a task that nobody came for is called again, if a lease is not shorter."""

_LOOKED_AT = 100
"""Tasks called again in one look."""

_NEXT_LOOK = 0.1
"""Seconds until the next look at least, while there are more. A long queue is overdue too, and
calling all of it again and again would make it longer: a busy worker takes its time."""


class Runner:
    """Runs tasks in this process."""

    def __init__(
        self,
        service: TaskService,
        held: HeldCalls,
        *,
        concurrency: int = 16,
        per_tool: Mapping[str, int] | None = None,
        per_caller: int | None = None,
        lease: float = 30.0,
        grace: float = 10.0,
        calls: CarrierCalls | None = None,
    ) -> None:
        """Take the tasks to run.

        Args:
            service: The tasks.
            held: Those that wait for decisions.
            concurrency: Task runs at a time.
            per_tool: Task runs at a time of one tool.
            per_caller: Task runs at a time of one caller.
            lease: Seconds after which another worker takes over a run that is not renewed.
            grace: Seconds that running tasks have when the runner stops, and once more to unwind.
            calls: The carrier; without one tasks are claimed from the store.
        """
        self._service = service
        self._calls = calls
        self._grace = grace
        self._player = TaskPlayer(
            service,
            held,
            places=concurrency,
            per_tool=dict(per_tool or {}),
            per_caller=per_caller or concurrency,
            lease=lease,
        )
        self._loop: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._stop_listening = service.on_cancel(self._player.cancel)

    def __len__(self) -> int:
        """Count the running tasks."""
        return len(self._player)

    def start(self) -> None:
        """Begin to run tasks."""
        keep = self._player.keep_leases()
        self._renewing = asyncio.create_task(keep, name="antiphon task leases")
        if self._calls is None:
            carrier = LeaseCarrier(self._service.store, self._service.server)
            work = carrier.carry(self._player)
        else:
            work = self._carry(self._calls)
            look = self._look(self._calls)
            self._looking = asyncio.create_task(look, name="antiphon overdue tasks")
        self._loop = asyncio.create_task(work, name="antiphon task runner")

    async def stop(self) -> None:
        """Let running tasks finish within the grace, then give the rest back.

        The process must not end before this has returned: what is not given back is taken over
        only at the end of its lease.
        """
        self._stop_listening()
        self._player.stop()
        await _end(self._looking)
        if self._calls is None and self._loop is not None:
            # A claim under way is heard to its end: it may have been granted.
            await asyncio.wait({self._loop}, timeout=self._grace)
        await self._player.finish(self._grace)
        if self._loop is not None:
            await asyncio.wait({self._loop}, timeout=self._grace)
        await _end(self._loop)
        await _end(self._renewing)

    async def _carry(self, calls: CarrierCalls) -> None:
        """Run what the carrier brings; connect anew when its connection is lost for good."""
        stopping = self._player.stopping
        pauses = back_off(*PAUSES)
        while not stopping.is_set():
            opened = asyncio.ensure_future(calls.is_open.wait())
            stopped = asyncio.ensure_future(stopping.wait())
            try:
                await asyncio.wait({opened, stopped}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                opened.cancel()
                stopped.cancel()
            if stopping.is_set():
                return
            try:
                await calls.carrier.carry(self._player)
                pauses = back_off(*PAUSES)
            except Exception as error:  # noqa: BLE001 - whatever a driver raises
                pause = next(pauses)
                log.warning(
                    "the carrier of task runs failed; trying again in %g s: %s",
                    pause,
                    describe(error),
                )
                await asyncio.sleep(pause)
                await calls.reopen()

    async def _look(self, calls: CarrierCalls) -> None:
        """Call what nobody came for: its call was lost, or its worker and its call are."""
        service = self._service
        grace = min(_OVERDUE, self._player.lease)
        late = LateTasks()
        while True:
            if late.beyond is None:
                await asyncio.sleep(grace / 2)
            else:
                await self._until_idle(calls, grace / 2)
            try:
                late = await service.store.overdue(
                    server=service.server, grace=grace, limit=_LOOKED_AT, beyond=late.beyond
                )
            except StoreError:
                continue  # the runs themselves say so
            for due in late.tasks:
                calls.call(due)

    async def _until_idle(self, calls: CarrierCalls, most: float) -> None:
        """Return when everything is called and places are free, or after `most` seconds."""
        for _ in range(max(1, round(most / _NEXT_LOOK))):
            await asyncio.sleep(_NEXT_LOOK)
            if not calls.unsent and not self._player.is_busy:
                return


async def _end(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
