"""What a redeemed round costs on each store: processor time, beside the memory store.

`python -m bench.stores` prints a table: what the second round of a call costs this process on every
store, threads included; databases run beside it and are not counted. Rounds run 32 at a time, as
they would on a server; those of the memory store one at a time too.
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
from antiphon.protocol.request import Request
from bench.inside import after, first, make
from tests import servers as databases

AT_A_TIME = 32

_DONE = b'"isError":false'


async def prepared(server: Server, number: int) -> list[Request]:
    """Begin calls; return the requests that answer them."""
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
        made = {name: make() for name, make in make_store.items()}
        for server in made.values():
            await stack.enter_async_context(server.running())
        for turn in range(repeats + 1):
            for name, server in made.items():
                runs = {"": together}
                if name == "memory":
                    runs[", one at a time"] = in_turn
                for how, run in runs.items():
                    rounds = await prepared(server, number)
                    begun = time.process_time_ns()
                    await run(server, rounds)
                    cost = (time.process_time_ns() - begun) / number / 1000
                    if turn:
                        seen.setdefault(name + how, []).append(cost)
    medians = {name: statistics.median(costs) for name, costs in seen.items()}
    for name, cost in medians.items():
        print(f"{name:28} {cost:8.1f} µs  {cost / medians['memory']:6.2f} x memory")


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dsn = stack.enter_context(databases.postgres())
        redis = stack.enter_context(databases.redis())
        made: dict[str, Callable[[], Server]] = {
            "memory": make,
            "sqlite": lambda: make(store=f"sqlite:///{folder / 'ledger.db'}"),
            "postgresql": lambda: make(store=dsn),
            "redis": lambda: make(store=redis),
        }
        asyncio.run(measure(made, repeats, 512))


if __name__ == "__main__":
    main()
