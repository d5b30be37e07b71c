"""Tasks while the store is away again and again: no process has ended, so no try is used up."""

import asyncio
import inspect
from typing import Any

from antiphon import Context, Seal, Server
from antiphon.errors import StoreError
from antiphon.stores.memory import MemoryStore
from antiphon.testing import KEY
from tests.simulated_time import LoopClock, SimulatedLoop
from tests.tasks.task_client import Peer


class Flapping:
    """A store that is away for 40 seconds in every minute, for seven minutes."""

    durable = shared = True

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def for_server(self, server: str) -> Any:
        self._store = self._store.for_server(server)
        return self

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        if not inspect.iscoroutinefunction(operation) or name in ("open", "close"):
            return operation

        async def call(*args: Any, **options: Any) -> Any:
            if name == "runs_ready":
                options["timeout"] = min(options["timeout"], 1.0)
            now = asyncio.get_running_loop().time()
            if 5 < now < 420 and (now - 5) % 60 < 40:
                await asyncio.sleep(0.01)
                raise StoreError("the store is away")
            return await operation(*args, **options)

        return call


def test_outages_of_the_store_use_up_no_try_of_a_task() -> None:
    done: list[str] = []

    async def story() -> str:
        loop = asyncio.get_running_loop()
        clock = LoopClock(loop)
        store: Any = Flapping(MemoryStore(clock=clock))
        server = Server("cloud", store=store, seal=Seal(keys=[KEY]), clock=clock, environ={})

        @server.tool(task="allowed")
        async def report(ctx: Context) -> str:
            await asyncio.sleep(50)  # longer than the store ever stays
            return await ctx.once("mail", lambda: done.append("mail") or "sent")

        async with server.running():
            peer = Peer(server)
            id = await peer.begin("report")
            await asyncio.sleep(600)
            return await peer.text(id)

    loop = SimulatedLoop()
    try:
        assert loop.run_until_complete(story()) == "sent"
    finally:
        loop.close()
    assert done == ["mail"]
