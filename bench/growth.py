"""How the cost of a call grows: with its rounds, its journal, and what else the server holds.

Inside one process, without HTTP; a line of figures and its slope for each. A slope is fitted by
least squares, in microseconds for one more of what is counted.
"""

import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uvloop

from antiphon import Context, Server
from antiphon.protocol.request import Channel, Principal, Request
from bench.inside import DEEP, Placement, after, first, make, rounds, timed, whole

CALLS, REPEATS = 60, 7


async def _cost(server: Server, tool: str) -> float:
    """Microseconds of a whole call: the median of some batches."""
    await timed(lambda: whole(server, tool), CALLS)
    return statistics.median(
        [await timed(lambda: whole(server, tool), CALLS) for _ in range(REPEATS)]
    )


async def by_round() -> dict[int, float]:
    """Round n of a call that asks one question after another."""
    costs = await rounds("replayed", 20, 7)
    return {n + 1: cost for n, cost in enumerate(costs) if (n and n % 3 == 0) or n in (1, DEEP - 1)}


async def by_journal() -> dict[int, float]:
    """A call of two rounds with n values remembered before its question."""
    server = make()

    async def remembering(name: str, ctx: Context) -> str:
        for number in range(int(name)):
            await ctx.memo(f"value {number}x", _one)
        return (await ctx.elicit("Where?", Placement)).region

    server.tool(name="remembering")(remembering)
    found: dict[int, float] = {}
    async with server.running():
        for n in (1, 10, 20, 40):

            async def call(n: int = n) -> None:
                asked = await server.dispatcher.dispatch(_named("remembering", n))
                answered = after("remembering", asked)
                answered.arguments = {"name": str(n)}
                result = await server.dispatcher.dispatch(answered)
                assert b'"isError":false' in result, result

            await timed(call, 5)
            found[n] = statistics.median([await timed(call, 20) for _ in range(REPEATS)])
    return found


async def _one() -> int:
    return 1


def _named(tool: str, n: int) -> Request:
    request = first(tool)
    request.arguments = {"name": str(n)}
    return request


async def by_tools() -> dict[int, float]:
    """A call on a server with n tools."""
    found: dict[int, float] = {}
    for n in (10, 100, 1_000):
        server = make()
        for number in range(n):

            async def other(name: str) -> str:
                return name

            server.tool(name=f"other_{number}")(other)
        async with server.running():
            found[n] = await _cost(server, "linear")
    return found


async def by_listeners() -> dict[int, float]:
    """A call while n clients listen to changes."""
    found: dict[int, float] = {}
    for n in (0, 100, 1_000):
        server = make()
        async with server.running():
            streams = [
                await server.dispatcher.subscriptions.subscribe(_listen(number))
                for number in range(n)
            ]
            found[n] = await _cost(server, "linear")
            for stream in streams:
                stream.close()
    return found


def _listen(number: int) -> Request:
    return Request(
        method="subscriptions/listen",
        capabilities={},
        principal=Principal(subject=f"listener {number}"),
        channel=Channel(),
        params={"notifications": {"toolsListChanged": True}},
    )


async def by_parked() -> dict[int, float]:
    """A call while n handlers are parked."""
    found: dict[int, float] = {}
    server = make()
    async with server.running():
        parked = 0
        for n in (0, 1_000, 10_000):
            while parked < n:
                await server.dispatcher.dispatch(first("parked"))
                parked += 1
            found[n] = await _cost(server, "linear")
    return found


async def by_ledger() -> dict[int, float]:
    """A call while the ledger in memory holds n redeemed rounds."""
    found: dict[int, float] = {}
    server = make()
    async with server.running():
        done = 0
        for n in (0, 5_000, 20_000):
            while done < n:
                await whole(server, "linear")
                done += 1
            found[n] = await _cost(server, "linear")
    return found


LINES: dict[str, Callable[[], Awaitable[dict[int, float]]]] = {
    "round": by_round,
    "journal entry": by_journal,
    "tool": by_tools,
    "listener": by_listeners,
    "parked handler": by_parked,
    "ledger row": by_ledger,
}
"""What is counted, and its figures: microseconds by number."""


def slope(line: dict[int, float]) -> float:
    """Microseconds that one more adds."""
    return statistics.linear_regression(list(line), list(line.values())).slope


def main() -> None:
    """Print one line as JSON; the benchmark runs each in a process of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found: Any = runner.run(LINES[sys.argv[1]]())  # pyright: ignore[reportArgumentType]
    sys.stdout.buffer.write(msgspec.json.encode({str(n): cost for n, cost in found.items()}))


if __name__ == "__main__":
    main()
