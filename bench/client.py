"""What a call costs the caller: `antiphon.Client` beside the official client.

    python -m bench.client [seconds per figure]

Both clients talk to the same server, take turns in short runs, and check every answer. Counted is
the processor time of this process, in which only the clients run; the server is another process.
The median of the runs counts, and only the ratio of one run means something.
"""

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import mcp
import mcp_types as types
from mcp.client.stdio import StdioServerParameters

import antiphon
from bench.procs import COMMANDS, ROOT, pin_load, port_of, server
from bench.story import ANSWER, EXPECTED, NAME, REQUESTS, Wrong

TURNS = 15
BOUND = 1.0
"""Our client may cost as much as the official one, not more."""

Call = Callable[[str, dict[str, Any]], Awaitable[types.CallToolResult]]


async def ours(stack: AsyncExitStack, target: str | list[str]) -> Call:
    """Open our client."""

    async def elicit(ask: antiphon.FormAsk) -> dict[str, Any]:
        return ANSWER

    answers = antiphon.Answers(elicit=elicit)
    client = antiphon.Client(target, answers=answers, cwd=ROOT)
    return (await stack.enter_async_context(client)).call_tool


async def official(stack: AsyncExitStack, target: str | list[str]) -> Call:
    """Open the official client."""

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content=ANSWER)

    if isinstance(target, list):
        command, *args = target
        place: Any = StdioServerParameters(command=command, args=args, cwd=ROOT)
    else:
        place = target
    client = mcp.Client(place, elicitation_callback=elicit)
    return (await stack.enter_async_context(client)).call_tool


async def cost(call: Call, workload: str, span: float) -> float:
    """Return the processor time of one round in microseconds."""
    arguments, expected = {"name": NAME}, EXPECTED[workload]
    calls, start = 0, time.process_time()
    while (spent := time.process_time() - start) < span:
        for _ in range(10):
            result = await call(workload, arguments)
            if result.content[0].text != expected:  # pyright: ignore[reportAttributeAccessIssue]
                raise Wrong(f"{workload}: {result}")
        calls += 10
    return spent / (calls * REQUESTS[workload]) * 1e6


async def measure(target: str | list[str], seconds: float) -> dict[tuple[str, str], float]:
    """Return the microseconds per round by client and workload."""
    seen: dict[tuple[str, str], list[float]] = {}
    async with AsyncExitStack() as stack:
        clients = {
            "antiphon": await ours(stack, target),
            "official": await official(stack, target),
        }
        gc.freeze()
        # The first turn warms up and is not counted.
        for turn in range(TURNS + 1):
            for workload in REQUESTS:
                for name, call in clients.items():
                    figure = await cost(call, workload, seconds / TURNS)
                    if turn:
                        seen.setdefault((name, workload), []).append(figure)
    return {key: statistics.median(figures) for key, figures in seen.items()}


def show(transport: str, found: dict[tuple[str, str], float]) -> bool:
    """Print the figures of one transport; return whether the bound holds."""
    held = True
    for workload in REQUESTS:
        mine, theirs = found["antiphon", workload], found["official", workload]
        held = held and mine <= BOUND * theirs
        print(
            f"{transport:6} {workload:7} antiphon {mine:7.0f} µs   official {theirs:7.0f} µs   "
            f"ratio {mine / theirs:5.2f}"
        )
    return held


def main(seconds: float) -> int:
    """Measure over HTTP and over stdio."""
    pin_load()
    with ExitStack() as stack:
        port = port_of(stack.enter_context(server("antiphon", "http")))
        over_http = asyncio.run(measure(f"http://127.0.0.1:{port}/mcp", seconds))
    over_stdio = asyncio.run(measure([*COMMANDS["antiphon"], "stdio"], seconds))
    held = [show("http", over_http), show("stdio", over_stdio)]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0))
