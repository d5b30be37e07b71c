"""What every carrier of task runs must do, as async functions that run with real workers.

Each contract takes a `CarrierKit`: a store, how to make a carrier, and how to start a worker as a
process of its own, which the contract kills, stops and lets go on. Effects are counted in a file.

    @pytest.mark.parametrize("contract", CARRIER_CONTRACTS, ids=lambda contract: contract.__name__)
    async def test_my_carrier(contract, kit):
        await contract(kit)

A worker process serves `story_server(folder, store, carrier)`, for instance from a module with
`server = story_server(...)` that `antiphon worker` is started with.
"""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from antiphon import Context, Limits, Principal, Seal, Server
from antiphon.ports import Carrier, Due
from antiphon.protocol.envelope import CLIENT_CAPABILITIES, PROTOCOL_VERSION, admit
from antiphon.protocol.request import MODERN
from antiphon.testing.doubles import RecordingChannel, Tally
from antiphon.testing.harness import KEY, WITH_TASKS

LEASE = 2.0
PATIENCE = 30.0
PLACES = 8
"""Tasks that a worker runs at a time."""

CROWD = 24
"""Tasks of one caller."""

NAME = "story"


@dataclass(frozen=True)
class CarrierKit:
    """What the contracts of carriers are run with."""

    folder: Path
    """Empty; for what the story leaves behind."""

    store: str
    """The URL of a store that processes share."""

    carrier: Callable[[], Carrier | str]
    """Makes a carrier for `NAME`, as another process would."""

    worker: Callable[[], AbstractAsyncContextManager[int]]
    """Starts a worker as a process that runs the tasks of `story_server`; gives its id once it
    runs. It may be dead when the context is left."""

    away: Callable[[], AbstractAsyncContextManager[None]] | None = None
    """The engine is killed, and started again at the end; None where the store is the engine."""


CarrierContract: TypeAlias = Callable[[CarrierKit], Awaitable[None]]


def story_server(folder: Path, store: str, carrier: "Carrier | str") -> Server:
    """Return the server whose tasks are run; it leaves running them to workers."""
    limits = Limits(lease=timedelta(seconds=LEASE), concurrent_task_runs=PLACES)
    seal = Seal(keys=[KEY])
    server = Server(
        NAME, store=store, carrier=carrier, task_runs="workers", seal=seal, limits=limits
    )
    tally = Tally(folder / "tally")

    @server.tool(task="allowed")
    async def work(ctx: Context, run: str) -> str:
        """Act once."""
        await ctx.once("act", tally.mark, run)
        return f"worked {run}"

    @server.tool(task="allowed")
    async def ask(ctx: Context, run: str) -> str:
        """Ask, then act once."""
        form = {"type": "object", "properties": {"name": {"type": "string"}}}
        answer = await ctx.elicit("Who?", form, key="who")
        await ctx.once("act", tally.mark, run)
        return str(answer["name"])

    @server.tool(task="allowed")
    async def pause(ctx: Context, run: str, hold: float) -> str:
        """Go on after a while."""
        before = await ctx.memo("began", time.time)
        await ctx.pause(hold=hold)
        await ctx.once("act", tally.mark, run)
        return str(time.time() - before)

    @server.tool(task="allowed")
    async def hang(ctx: Context, run: str) -> str:
        """In its first run, note the process and wait for a word; then act once."""
        try:
            with (folder / f"first-{run}").open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            await ctx.once("act", tally.mark, run)
            return "by another"
        while not (folder / f"go-{run}").exists():  # noqa: ASYNC110 - another process says so
            await asyncio.sleep(0.02)
        await ctx.once("act", tally.mark, run)
        return "by the first"

    @server.tool(task="allowed")
    async def act_slowly(ctx: Context, run: str) -> str:
        """Act once, which takes until a word is given."""
        tally.mark(f"{run} began")

        async def act() -> str:
            tally.mark(run)
            (folder / f"first-{run}").write_text(str(os.getpid()))
            while not (folder / f"go-{run}").exists():  # noqa: ASYNC110 - another process says so
                await asyncio.sleep(0.02)
            return "acted"

        return await ctx.once("act", act)

    return server


class Story:
    """A process that accepts calls, and what has happened by them."""

    def __init__(self, kit: CarrierKit, server: Server, caller: str = "ada") -> None:
        self.kit = kit
        self._server = server
        self._caller = Principal(subject=caller)

    def by(self, caller: str) -> "Story":
        """Return the same with another caller."""
        return Story(self.kit, self._server, caller)

    async def _send(self, method: str, **params: Any) -> dict[str, Any]:
        meta = {PROTOCOL_VERSION: MODERN, CLIENT_CAPABILITIES: dict(WITH_TASKS)}
        message: dict[str, Any] = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": method,
            "params": {**params, "_meta": meta},
        }
        dispatcher = self._server.dispatcher
        request = admit(message, dispatcher.served, self._caller, channel=RecordingChannel())
        return msgspec.json.decode(await dispatcher.dispatch(request))

    async def begin(self, tool: str, **arguments: Any) -> str:
        """Begin a task; returns its id."""
        made = await self._send("tools/call", name=tool, arguments=arguments)
        return made["taskId"]

    async def look(self, id: str) -> dict[str, Any]:
        return await self._send("tasks/get", taskId=id)

    async def answer(self, id: str, name: str) -> None:
        said = {"who": {"action": "accept", "content": {"name": name}}}
        await self._send("tasks/update", taskId=id, inputResponses=said)

    async def cancel(self, id: str) -> None:
        await self._send("tasks/cancel", taskId=id)

    async def until(self, id: str, *statuses: str) -> dict[str, Any]:
        """Wait until a task has one of these statuses."""
        async with asyncio.timeout(PATIENCE):
            while (task := await self.look(id))["status"] not in statuses:
                assert task["status"] not in ("failed", "cancelled", "completed"), task
                await asyncio.sleep(0.02)
        return task

    async def text(self, id: str) -> str:
        """Wait for the end of a task; returns its result."""
        task = await self.until(id, "completed")
        return task["result"]["content"][0]["text"]

    async def holder(self, run: str) -> int:
        """Wait until a process hangs in this run; returns its id."""
        first = self.kit.folder / f"first-{run}"
        async with asyncio.timeout(PATIENCE):
            while not first.exists() or not first.read_text():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
        return int(first.read_text())

    @property
    def marks(self) -> list[str]:
        """What the runs have noted, in order."""
        return Tally(self.kit.folder / "tally").marks

    def acted(self, run: str) -> int:
        """How often the effect of a run happened."""
        return self.marks.count(run)

    def busy(self, runs: Sequence[str]) -> list[str]:
        """Which of these runs of `act_slowly` have begun, and were not told to go on."""
        began, folder = set(self.marks), self.kit.folder
        return [run for run in runs if run in began and not (folder / f"go-{run}").exists()]

    def go(self, *runs: str) -> None:
        """Let runs go on that wait for a word."""
        for run in runs:
            (self.kit.folder / f"go-{run}").touch()


@asynccontextmanager
async def story(kit: CarrierKit, carrier: "Carrier | str | None" = None) -> AsyncGenerator[Story]:
    """Run a process that accepts calls, in this one."""
    server = story_server(kit.folder, kit.store, carrier or kit.carrier())
    async with server.running():
        yield Story(kit, server)


def run_name() -> str:
    return secrets.token_hex(4)


# --- delivered, twice, late, lost ----------------------------------------------------------------


async def a_called_task_is_run_asked_and_woken(kit: CarrierKit) -> None:
    run = run_name()
    async with story(kit) as one, kit.worker():
        ids = [await one.begin("work", run=f"{run}{number}") for number in range(8)]
        asking = await one.begin("ask", run=run)
        assert [await one.text(id) for id in ids] == [f"worked {run}{n}" for n in range(8)]
        await one.until(asking, "input_required")
        await one.answer(asking, "Ada")
        assert await one.text(asking) == "Ada"
        assert [one.acted(f"{run}{n}") for n in range(8)] + [one.acted(run)] == [1] * 9


async def a_pause_is_over_when_it_is_over(kit: CarrierKit) -> None:
    async with story(kit) as one, kit.worker():
        took = float(await one.text(await one.begin("pause", run=run_name(), hold=1.2)))
        assert 1.1 < took < 6.0, took


class Repeating:
    """A carrier that calls everything three times, and all of it once more after a while."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.called: list[Due] = []

    async def open(self) -> None:
        await self._carrier.open()

    async def close(self) -> None:
        await self._carrier.close()

    async def call(self, due: Due) -> None:
        self.called.append(due)
        for number in range(3):
            # As other processes would that have seen the task at other moments.
            await self._carrier.call(msgspec.structs.replace(due, revision=due.revision + number))

    async def late(self) -> None:
        for due in self.called:
            await self._carrier.call(msgspec.structs.replace(due, revision=due.revision + 10))

    async def carry(self, run: Any) -> None:
        await self._carrier.carry(run)


async def calls_that_come_twice_or_late_change_nothing(kit: CarrierKit) -> None:
    carrier, run = kit.carrier(), run_name()
    if isinstance(carrier, str):
        return  # claimed from the store: nobody calls
    repeating = Repeating(carrier)
    async with story(kit, repeating) as one, kit.worker(), kit.worker():
        ids = [await one.begin("work", run=f"{run}{number}") for number in range(4)]
        asking = await one.begin("ask", run=run)
        for id in ids:
            await one.text(id)
        await one.until(asking, "input_required")
        await repeating.late()
        await one.answer(asking, "Ada")
        assert await one.text(asking) == "Ada"
        await repeating.late()
        await one.text(await one.begin("work", run=f"{run}-last"))
        assert [one.acted(f"{run}{n}") for n in range(4)] + [one.acted(run)] == [1] * 5


class Losing(Repeating):
    """A carrier that loses every call."""

    async def call(self, due: Due) -> None:
        self.called.append(due)


async def a_lost_call_is_found(kit: CarrierKit) -> None:
    carrier, run = kit.carrier(), run_name()
    losing = carrier if isinstance(carrier, str) else Losing(carrier)
    async with story(kit, losing) as one, kit.worker():
        id = await one.begin("ask", run=run)
        await one.until(id, "input_required")
        await one.answer(id, "Ada")
        assert await one.text(id) == "Ada"
        assert one.acted(run) == 1


async def a_wish_to_cancel_reaches_the_worker(kit: CarrierKit) -> None:
    run = run_name()
    async with story(kit) as one, kit.worker():
        id = await one.begin("hang", run=run)
        await one.holder(run)
        await one.cancel(id)
        await one.until(id, "cancelled")
        assert one.acted(run) == 0


async def a_caller_with_many_tasks_does_not_keep_others_waiting(kit: CarrierKit) -> None:
    """Others come long before the crowd is through, although every task of it came before."""
    run, last = run_name(), run_name()
    runs = [f"{run}-{number}" for number in range(CROWD)]
    async with story(kit) as one:
        crowd, other = one.by("crowd"), one.by("other")
        ids = [await crowd.begin("act_slowly", run=name) for name in runs]
        id = await other.begin("work", run=last)
        async with kit.worker(), asyncio.timeout(PATIENCE):
            while not one.acted(last):
                busy = one.busy(runs)
                if len(busy) >= PLACES * 3 // 4:
                    one.go(busy[0])  # a place becomes free, now and then
                await asyncio.sleep(0.2)
            assert await other.text(id) == f"worked {last}"
            began = one.marks[: one.marks.index(last)]
            assert sum(name in began for name in runs) <= 2 * PLACES, began
            one.go(*runs)
            for id in ids:
                assert await crowd.text(id) == "acted"
        assert [one.acted(name) for name in (*runs, last)] == [1] * (CROWD + 1)


# --- killed, frozen, asked to end ----------------------------------------------------------------


async def a_killed_worker_is_followed(kit: CarrierKit) -> None:
    run = run_name()
    async with story(kit) as one, kit.worker(), kit.worker():
        id = await one.begin("hang", run=run)
        os.kill(await one.holder(run), signal.SIGKILL)
        assert await one.text(id) == "by another"
        assert one.acted(run) == 1


async def a_frozen_worker_is_followed_and_wakes_up_fenced(kit: CarrierKit) -> None:
    run, after = run_name(), run_name()
    async with story(kit) as one, kit.worker(), kit.worker():
        id = await one.begin("hang", run=run)
        frozen = await one.holder(run)
        os.kill(frozen, signal.SIGSTOP)
        try:
            assert await one.text(id) == "by another"
            one.go(run)
        finally:
            os.kill(frozen, signal.SIGCONT)
        await one.text(await one.begin("work", run=after))
        await asyncio.sleep(LEASE / 2)  # in which the woken one would act, if it could
        assert (one.acted(run), one.acted(after)) == (1, 1)
        assert await one.text(id) == "by another"


async def a_worker_that_is_asked_to_end_finishes_its_runs(kit: CarrierKit) -> None:
    run = run_name()
    async with story(kit) as one, kit.worker():
        id = await one.begin("hang", run=run)
        os.kill(await one.holder(run), signal.SIGTERM)
        one.go(run)
        assert await one.text(id) == "by the first"
        assert one.acted(run) == 1


# --- the engine away -----------------------------------------------------------------------------


async def answers_given_while_the_engine_is_away_are_run_after_its_return(kit: CarrierKit) -> None:
    if kit.away is None:
        return
    runs, hanging = [run_name() for _ in range(4)], run_name()
    async with story(kit) as one, kit.worker(), kit.worker():
        asking = [await one.begin("ask", run=run) for run in runs[:3]]
        for id in asking:
            await one.until(id, "input_required")
        busy = await one.begin("hang", run=hanging)
        await one.holder(hanging)
        async with kit.away():
            loop = asyncio.get_running_loop()
            began = loop.time()
            for id in asking:
                await one.answer(id, "Ada")
            made = await one.begin("work", run=runs[3])
            assert loop.time() - began < 4 * 0.25, "requests waited for the engine"
        one.go(hanging)
        assert [await one.text(id) for id in asking] == ["Ada"] * 3
        assert await one.text(made) == f"worked {runs[3]}"
        assert await one.text(busy) in ("by the first", "by another")
        assert [one.acted(run) for run in (*runs, hanging)] == [1] * 5


async def a_run_goes_on_while_the_engine_is_away(kit: CarrierKit) -> None:
    """Nobody has died: an effect that is under way stays with the worker that began it."""
    if kit.away is None:
        return
    run = run_name()
    async with story(kit) as one, kit.worker(), kit.worker():
        id = await one.begin("act_slowly", run=run)
        await one.holder(run)
        async with kit.away():
            await asyncio.sleep(2 * LEASE)  # longer than the engine takes a silent worker for alive
        await one.text(await one.begin("work", run=run_name()))  # it carries again
        await asyncio.sleep(2 * LEASE)  # in which others would be told that the worker is dead
        one.go(run)
        assert await one.text(id) == "acted"
        assert (one.acted(run), one.acted(f"{run} began")) == (1, 1)


CARRIER_CONTRACTS: tuple[CarrierContract, ...] = (
    a_called_task_is_run_asked_and_woken,
    a_pause_is_over_when_it_is_over,
    calls_that_come_twice_or_late_change_nothing,
    a_lost_call_is_found,
    a_wish_to_cancel_reaches_the_worker,
    a_caller_with_many_tasks_does_not_keep_others_waiting,
    a_killed_worker_is_followed,
    a_frozen_worker_is_followed_and_wakes_up_fenced,
    a_worker_that_is_asked_to_end_finishes_its_runs,
    answers_given_while_the_engine_is_away_are_run_after_its_return,
    a_run_goes_on_while_the_engine_is_away,
)
"""Everything that a carrier must do."""
