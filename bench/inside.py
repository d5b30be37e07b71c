"""What cannot be seen from outside: costs of rounds inside one process, without HTTP.

Drives the dispatcher by hand. Each figure is a median of short interleaved batches, in
microseconds of processor time.
"""

import asyncio
import compileall
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
import uvloop
from pydantic import BaseModel, Field

from antiphon import Context, Elicit, InputRequired, Server
from antiphon.protocol.limits import Limits
from antiphon.protocol.request import Principal, Request
from bench.procs import ROOT, resident_bytes
from bench.story import ANSWER

DEEP = 20
_PLACE = {"action": "accept", "content": ANSWER}
_WHO = Principal(transport="http")


class Placement(BaseModel):
    region: Literal["eu-west", "us-east"]
    size: int = Field(ge=1, le=10)


def make(**options: Any) -> Server:
    """A server with every shape of the same story."""
    limits = Limits(rounds=64, parked=20_000, parked_per_principal=20_000)
    server = Server("bench", limits=limits, environ={}, **options)

    @server.tool
    async def quiet(name: str, ctx: Context) -> str:
        return f"hello {name}"

    @server.tool
    async def quiet_native(name: str, ctx: Context) -> str | InputRequired:
        if name in ctx.answers:
            return InputRequired({"placement": Elicit("Where?", Placement)})
        return f"hello {name}"

    @server.tool
    async def linear(name: str, ctx: Context) -> str:
        placement = await ctx.elicit(f"Where should {name} run?", Placement)
        return f"{name} in {placement.region}"

    @server.tool
    async def native(name: str, ctx: Context) -> str | InputRequired:
        placement = ctx.answers.get("placement", Placement)
        if placement is None:
            return InputRequired({"placement": Elicit(f"Where should {name} run?", Placement)})
        return f"{name} in {placement.region}"

    async def long(name: str, ctx: Context) -> str:
        for part in range(DEEP):
            await ctx.elicit(f"Where should part {part} of {name} run?", Placement)
        return "done"

    server.tool(name="replayed")(long)
    server.tool(name="parked", park=60.0)(long)
    return server


def first(tool: str) -> Request:
    """The request that begins a call."""
    return Request(
        method="tools/call",
        target=tool,
        arguments={"name": "shop-7"},
        capabilities={"elicitation": {"form": {}}},
        principal=_WHO,
    )


def after(tool: str, result: bytes) -> Request:
    """The request that answers everything a result asks."""
    asked = msgspec.json.decode(result)
    round = first(tool)
    round.answers = dict.fromkeys(asked["inputRequests"], _PLACE)
    round.token = asked["requestState"]
    return round


async def whole(server: Server, tool: str) -> None:
    """Make one whole call."""
    result = await server.dispatcher.dispatch(first(tool))
    while b'"input_required"' in result[:40]:
        result = await server.dispatcher.dispatch(after(tool, result))
    assert b'"isError":false' in result, result


async def timed(work: Callable[[], Awaitable[Any]], number: int) -> float:
    """Microseconds of processor time of one piece of work."""
    start = time.process_time_ns()
    for _ in range(number):
        await work()
    return (time.process_time_ns() - start) / number / 1000


async def compare(
    works: dict[str, Callable[[], Awaitable[Any]]], *, number: int, repeats: int
) -> dict[str, float]:
    """Medians of interleaved batches."""
    seen: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            seen[name].append(await timed(work, number))
    return {name: statistics.median(times) for name, times in seen.items()}


async def shapes(repeats: int = 31) -> dict[str, float]:
    """Whole calls: asking nothing and asking once, linear and native."""
    server = make()
    works = {
        "quiet linear": lambda: whole(server, "quiet"),
        "quiet native": lambda: whole(server, "quiet_native"),
        "mrtr linear": lambda: whole(server, "linear"),
        "mrtr native": lambda: whole(server, "native"),
    }
    async with server.running():
        return await compare(works, number=200, repeats=repeats)


async def rounds(tool: str, calls: int, repeats: int) -> list[float]:
    """Cost of each round of a long call: round n has n answers recorded."""
    server = make()
    costs: list[list[float]] = [[] for _ in range(DEEP)]
    async with server.running():
        for _ in range(repeats):
            waiting = [first(tool) for _ in range(calls)]
            for n in range(DEEP):
                start = time.process_time_ns()
                # At once, each in a task, as requests come in: a parked frame needs the loop to
                # turn, and one turn serves them all.
                results = await asyncio.gather(*map(server.dispatcher.dispatch, waiting))
                costs[n].append((time.process_time_ns() - start) / calls / 1000)
                waiting = [after(tool, result) for result in results]
            for round in waiting:
                await server.dispatcher.dispatch(round)
    return [statistics.median(times) for times in costs]


async def replay_growth() -> tuple[float, float]:
    """Microseconds that one recorded answer adds to a round, and what the second round costs."""
    costs = await rounds("replayed", 40, 15)
    slope = statistics.linear_regression(range(1, DEEP), costs[1:]).slope
    return slope, costs[1]


async def parked_and_replayed() -> tuple[float, float]:
    """Cost of a round with ten recorded answers: live and replayed, interleaved."""
    live: list[float] = []
    again: list[float] = []
    for _ in range(5):
        live.append((await rounds("parked", 40, 3))[10])
        again.append((await rounds("replayed", 40, 3))[10])
    return statistics.median(live), statistics.median(again)


async def parked_bytes(frames: int = 10_000) -> float:
    """Bytes of one parked frame, from what the process has."""
    server = make()
    async with server.running():
        await server.dispatcher.dispatch(first("parked"))
        gc.collect()
        before = resident_bytes(os.getpid())
        for _ in range(frames):
            await server.dispatcher.dispatch(first("parked"))
        gc.collect()
        size = (resident_bytes(os.getpid()) - before) / frames
        assert server.stats()["parked"] == frames + 1, server.stats()
    return size


def import_ms(module: str, repeats: int = 7) -> float:
    """Milliseconds of processor time of an import, beyond what Python itself takes."""
    # An installed package is compiled; a source tree that was just edited may not be.
    compileall.compile_dir(str(ROOT / "src"), quiet=1)
    own = [_started("pass") for _ in range(repeats)]
    with_it = [_started(f"import {module}") for _ in range(repeats)]
    return (statistics.median(with_it) - statistics.median(own)) * 1000


def _started(code: str) -> float:
    before = os.times()
    subprocess.run([sys.executable, "-c", code], check=True)
    after = os.times()
    return (after.children_user + after.children_system) - (
        before.children_user + before.children_system
    )


def main() -> None:
    """Print everything as JSON; run by the benchmark as a process of its own, on its own core."""
    what = sys.argv[1]
    run: Any = {
        "shapes": shapes,
        "growth": replay_growth,
        "parked": parked_and_replayed,
        "memory": parked_bytes,
    }[what]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.buffer.write(msgspec.json.encode(runner.run(run())))


if __name__ == "__main__":
    main()
