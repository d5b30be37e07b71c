"""NATS: which worker takes a call."""

import asyncio

from antiphon.ports import Due, Space
from antiphon.tasks.queues.nats import NatsCarrier
from tests import servers
from tests.tasks.task_client import PATIENCE


class FullWorker:
    """A worker whose places are all taken, by tasks that it has claimed itself."""

    places, lease = 4, 30.0

    def __init__(self) -> None:
        self.stopping, self.called = asyncio.Event(), asyncio.Event()
        self._free, self._freed = 0, asyncio.Event()

    async def __call__(self, due: Due, *, seize: int = 0) -> None:
        self.called.set()

    def space(self) -> Space:
        return Space(runs=self._free)

    async def freed(self) -> None:
        await self._freed.wait()

    async def start(self, rows: object, *, claimed_at: float) -> None:
        raise AssertionError

    def end_a_run(self) -> None:
        self._free = 1
        self._freed.set()


async def test_a_worker_without_a_free_place_leaves_calls_to_others() -> None:
    full = FullWorker()
    with servers.nats() as engine:
        carrier = NatsCarrier(engine.url, "shop")
        await carrier.open()
        carrying = asyncio.create_task(carrier.carry(full))
        try:
            await carrier.call(Due("task", "shop", "refund", "caller", 0, 1))
            await asyncio.sleep(0.5)
            assert not full.called.is_set()
            full.end_a_run()
            async with asyncio.timeout(PATIENCE):
                await full.called.wait()
        finally:
            full.stopping.set()
            await carrying
            await carrier.close()
