"""A server whose workers die where a task says so; started by test_crashes.

A point is `operation:name@before` or `@after`, for instance `begin:pack@after` or
`finish:completed@before`. The first process that comes past the point of a task kills itself with
SIGKILL; a file remembers that, so that the next one lives. What happened is counted in a file.
"""

import asyncio
import logging
import os
import signal
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

from antiphon import Context, Limits, Seal, Server
from antiphon.stores import open_store
from antiphon.testing import KEY, Tally
from tests.tasks.story_workers import carrier_of
from tests.tasks.task_client import Name

FOLDER = Path(os.environ.get("CRASHING_WORKER_FOLDER", "."))
LEASE = 1.0
TRIES = int(os.environ.get("CRASHING_WORKER_TRIES", "50"))
"""Many, because here workers also die of other tasks than theirs."""

_point: ContextVar[str] = ContextVar("point", default="")


def past(place: str) -> None:
    """Come past a place; die if it is the point of this task and nobody has died there yet."""
    run, _, point = _point.get().partition(" ")
    if place != point:
        return
    try:
        (FOLDER / f"died-{run}").open("x").close()
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def act(run: str, what: str) -> str:
    """The effect of which there must be one."""
    past(f"effect:{what}@before")
    Tally(FOLDER / "tally").mark(f"{run} {what}")
    past(f"effect:{what}@after")
    return f"{what}ed"


class MortalStore:
    """A store with points before and after the operations that write."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def for_server(self, server: str) -> Any:
        self._store = self._store.for_server(server)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def begin(self, effect: Any, **how: Any) -> Any:
        return await self._between(f"begin:{effect.key}", self._store.begin(effect, **how))

    async def settle(self, effect: str, fence: int, **how: Any) -> Any:
        key = effect.rpartition("/")[2]
        return await self._between(f"settle:{key}", self._store.settle(effect, fence, **how))

    async def finish_run(self, id: str, epoch: int, revision: int, change: Any) -> Any:
        finishing = self._store.finish_run(id, epoch, revision, change)
        return await self._between(f"finish:{change.status}", finishing)

    async def record(self, *args: Any, task: Any = None, **how: Any) -> Any:
        name = "record:round" if task is None else "record:task"
        more = {} if task is None else {"task": task}
        return await self._between(name, self._store.record(*args, **how, **more))

    async def create_task(self, *args: Any, **how: Any) -> Any:
        return await self._between("create:task", self._store.create_task(*args, **how))

    async def _between(self, name: str, operation: Any) -> Any:
        past(f"{name}@before")
        result = await operation
        past(f"{name}@after")
        return result


def make(url: str, *, task_runs: Any = "workers", carrier: str = "leases:") -> Server:
    """The server, in any process."""
    store: Any = MortalStore(open_store(url))
    limits = Limits(lease=timedelta(seconds=LEASE), releases=TRIES)
    server = Server(
        "crashing_worker",
        seal=Seal(keys=[KEY]),
        store=store,
        limits=limits,
        task_runs=task_runs,
        carrier=carrier_of(carrier, "crashing_worker"),
    )
    _tools(server)
    return server


def _tools(server: Server) -> None:
    @server.tool
    async def order(ctx: Context, run: str, point: str) -> str:
        """Rounds, then a task, then a question in it."""
        _point.set(f"{run} {point}")
        person = await ctx.elicit("Who?", Name, key="who")
        await ctx.once("pay", act, run, "pay")
        await ctx.detach("packing")
        past("run@start")
        await ctx.once("pack", act, run, "pack")
        place = await ctx.elicit("Where to?", Name, key="where")
        past("run@answered")
        await ctx.once("ship", act, run, "ship")
        return f"{person.name} {place.name}"

    @server.tool(task="allowed")
    async def job(ctx: Context, run: str, point: str) -> str:
        """A task from the first line."""
        _point.set(f"{run} {point}")
        await ctx.once("pack", act, run, "pack")
        return "done"

    @server.tool(task="allowed")
    async def poison(ctx: Context) -> str:
        """Come a little way, then end the process, every time."""
        await ctx.once("pack", act, "poison", "pack")
        Tally(FOLDER / "tally").mark("poison run")
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    @server.tool(task="allowed")
    async def sleepy(ctx: Context, run: str) -> str:
        """Wait in the first run until told, then act."""
        first = FOLDER / f"first-{run}"
        try:
            with first.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return await ctx.once("pack", act, run, "pack")
        while not (FOLDER / f"go-{run}").exists():  # noqa: ASYNC110 - another process says so
            await asyncio.sleep(0.05)
        (FOLDER / f"woke-{run}").touch()
        return await ctx.once("pack", act, run, "pack")


if "CRASHING_WORKER_STORE" in os.environ:
    logging.basicConfig(level=logging.INFO)
    server = make(
        os.environ["CRASHING_WORKER_STORE"],
        carrier=os.environ.get("CRASHING_WORKER_CARRIER", "leases:"),
    )
