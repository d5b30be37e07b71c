"""What redeeming costs: processor time of a round, on each store and with redeeming off.

`python -m bench.redeem` prints two tables. Over HTTP, with the memory store: what a request costs a
server, for a call of two rounds (one of them redeemed) and one of six (five of them). Inside one
process, on every store: what the second round of a call costs, threads included; databases run
beside it and are not counted. Rounds of one store run 32 at a time, as they would on a server;
memory and none are measured both ways.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path

import uvloop

from antiphon import Server
from antiphon.core.request import Request
from bench.inside import after, first, make
from bench.load import over_http
from bench.procs import cpu_ns, pin_load, port_of, server
from tests import servers

AT_A_TIME = 32
GOAL = 1.15
"""Times the cost of a round without redeeming, over HTTP with the memory store."""

_DONE = b'"isError":false'


def on_the_wire(repeats: int) -> None:
    """Load two servers in turn, one that redeems and one that does not; print the medians."""
    seen: dict[tuple[str, str], list[float]] = {}
    free = os.sched_getaffinity(0)
    pin_load()
    with ExitStack() as stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        houses = {mode: stack.enter_context(server("antiphon", "http", mode)) for mode in _MODES}
        ports = {mode: port_of(process) for mode, process in houses.items()}
        for turn in range(repeats + 1):
            for workload in ("mrtr", "wizard"):
                for mode, process in houses.items():
                    load = over_http(
                        ports[mode], workload, AT_A_TIME, 1.0, partial(cpu_ns, process.pid)
                    )
                    requests, spent = runner.run(load)
                    if turn:
                        seen.setdefault((workload, mode), []).append(spent / requests / 1000)
    os.sched_setaffinity(0, free)
    for workload in ("mrtr", "wizard"):
        on, off = (statistics.median(seen[workload, mode]) for mode in _MODES)
        met = "met" if on / off <= GOAL else "MISSED"
        print(f"HTTP, {workload:22} {on:8.1f} µs  {on / off:6.2f} x off  (at most {GOAL}: {met})")


_MODES = ("once", "off")


async def prepared(server: Server, number: int) -> list[Request]:
    """Begin calls; give the requests that answer them."""
    dispatch = server.dispatcher.dispatch
    return [after("linear", await dispatch(first("linear"))) for _ in range(number)]


async def in_turn(server: Server, rounds: list[Request]) -> None:
    for round in rounds:
        assert _DONE in await server.dispatcher.dispatch(round)


async def together(server: Server, rounds: list[Request]) -> None:
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
    on_the_wire(repeats)
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
