"""What a gateway costs: a round through it beside a round without it, and its memory.

python -m bench.gateway [--seconds 1] [--repeats 3]

The time of a round is that of one caller who sends one request after another; processor time is
that of the gateway alone, with 32 callers. Memory is what the system counts for the gateway: before
the first call, and after as many calls as there are that wait for an answer and never get one.
"""

import argparse
import asyncio
import statistics
import sys
import time
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import uvloop

from bench import report
from bench.load import over_http
from bench.procs import cpu_ns, pin_load, port_of, program, resident_bytes, server
from bench.story import Caller

BEHIND = {"serve": ("serve", "plain"), "mcpserver": ("http",)}
SHOWN = {"serve": "antiphon serve", "mcpserver": "MCPServer"}
WORKLOADS = ("plain", "mrtr", "wizard")
CONNECTIONS = 32
WAITING = 500
MIB = 1024 * 1024


class Cost(NamedTuple):
    """Of one round, in microseconds."""

    direct: float
    through: float
    spent: float
    """Processor time of the gateway."""


class Unanswered(Caller):
    """Begins a call and leaves it at its question; then begins another."""

    def check(self, message: object) -> object:
        """Forget what was asked, having seen that it was."""
        result = super().check(message)
        assert result is not None
        self._round = 0
        return None


_VARIED = partial(Caller, vary=True)
_LEFT = partial(Unanswered, vary=True)


def measure(name: str, seconds: float, repeats: int) -> tuple[dict[str, Cost], list[str]]:
    """Measure the rounds of one server behind a gateway; return them and a row about memory."""
    with ExitStack() as stack:
        direct = port_of(stack.enter_context(server(name, *BEHIND[name])))
        words = [sys.executable, "-m", "bench.servers.through", f"http://127.0.0.1:{direct}/mcp"]
        process = stack.enter_context(program(words))
        through = port_of(process)
        before = resident_bytes(process.pid)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            costs = {
                workload: _cost(runner, workload, (direct, through), process.pid, seconds, repeats)
                for workload in WORKLOADS
            }
            warm = resident_bytes(process.pid)
            count = runner.run(_leave_waiting(through))
        after = resident_bytes(process.pid)
    shown = [f"{before / MIB:.0f}", f"{warm / MIB:.0f}", f"{(after - warm) / count / 1024:.1f}"]
    return costs, [SHOWN[name], *shown]


def _cost(
    runner: asyncio.Runner,
    workload: str,
    ports: tuple[int, int],
    pid: int,
    seconds: float,
    repeats: int,
) -> Cost:
    """Measure in turns; the median of each."""
    seen: list[Cost] = []
    for _ in range(repeats):
        alone, beside = (
            runner.run(over_http(port, workload, 1, seconds / 2, time.monotonic_ns, _VARIED))
            for port in ports
        )
        loaded = runner.run(
            over_http(ports[1], workload, CONNECTIONS, seconds, partial(cpu_ns, pid), _VARIED)
        )
        seen.append(Cost(*(spent / requests / 1000 for requests, spent in (alone, beside, loaded))))
    return Cost(*(statistics.median(values) for values in zip(*seen, strict=True)))


async def _leave_waiting(port: int) -> int:
    """Begin calls that nobody answers; return how many."""
    begun = 0
    while begun < WAITING:
        requests, _ = await over_http(port, "mrtr", CONNECTIONS, 0.2, lambda: 0, _LEFT)
        begun += requests
    return begun


def run(seconds: float, repeats: int) -> str:
    """Measure everything; return the tables."""
    rounds: list[list[str]] = []
    memory: list[list[str]] = []
    for name in BEHIND:
        costs, kept = measure(name, seconds, repeats)
        memory.append(kept)
        rounds += [
            [
                SHOWN[name],
                workload,
                f"{cost.direct:.0f}",
                f"{cost.through:.0f}",
                f"{cost.spent:.0f}",
            ]
            for workload, cost in costs.items()
        ]
    head = [
        "behind the gateway",
        "workload",
        "direct, µs",
        "through, µs",
        "gateway's processor, µs",
    ]
    sizes = ["memory of the gateway", "at start, MiB", "after the load, MiB", "a waiting call, KiB"]
    return f"{report.table(head, rounds)}\n\n{report.table(sizes, memory)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.gateway", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    pin_load()
    print(run(options.seconds, options.repeats))


if __name__ == "__main__":
    main()
