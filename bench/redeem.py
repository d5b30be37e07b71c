"""What redeeming costs: processor time of a round that brings a token, on each store and without.

`python -m bench.redeem` prints microseconds of this process, threads included, for the second round
of a call: opened, answered, run, recorded. Databases run beside it and are not counted. Rounds of
one store run 32 at a time, as they would on a server; memory and none are measured both ways.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from antiphon import Server
from antiphon.core.round import Round
from bench.inside import after, first, make
from tests import servers

AT_A_TIME = 32
_DONE = b'"isError":false'


async def prepared(server: Server, number: int) -> list[Round]:
    """Begin calls; give the requests that answer them."""
    dispatch = server.dispatcher.dispatch
    return [after("linear", await dispatch(first("linear"))) for _ in range(number)]


async def in_turn(server: Server, rounds: list[Round]) -> None:
    for round in rounds:
        assert _DONE in await server.dispatcher.dispatch(round)


async def together(server: Server, rounds: list[Round]) -> None:
    waiting = iter(rounds)

    async def lane() -> None:
        for round in waiting:
            assert _DONE in await server.dispatcher.dispatch(round)

    await asyncio.gather(*(lane() for _ in range(AT_A_TIME)))


async def measure(make_store: dict[str, Callable[[], Server]], repeats: int, number: int) -> None:
    """Take turns in short batches; print the medians."""
    seen: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        houses = {name: made() for name, made in make_store.items()}
        for server in houses.values():
            await stack.enter_async_context(server.running())
        for turn in range(repeats + 1):
            for name, server in houses.items():
                ways = {"": together} if name not in ("off", "memory") else {
                    ", one at a time": in_turn, "": together,
                }  # fmt: skip
                for way, run in ways.items():
                    rounds = await prepared(server, number)
                    begun = time.process_time_ns()
                    await run(server, rounds)
                    cost = (time.process_time_ns() - begun) / number / 1000
                    if turn:
                        seen.setdefault(name + way, []).append(cost)
    medians = {name: statistics.median(costs) for name, costs in seen.items()}
    for name, cost in medians.items():
        base = medians["off, one at a time" if name.endswith("a time") else "off"]
        print(f"{name:28} {cost:8.1f} µs  {cost / base:6.2f} x off")


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dsn = stack.enter_context(servers.postgres())
        redis = stack.enter_context(servers.redis())
        houses: dict[str, Callable[[], Server]] = {
            "off": lambda: make(redeem="off"),
            "memory": make,
            "sqlite": lambda: make(store=f"sqlite:///{folder / 'ledger.db'}"),
            "postgresql": lambda: make(store=dsn),
            "redis": lambda: make(store=redis),
        }
        asyncio.run(measure(houses, repeats, 512))


if __name__ == "__main__":
    main()
