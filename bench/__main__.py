"""`python -m bench`: every figure, its goal, and whether it is met. `make bench` calls it.

Processor time of the server's process for each request, as the system counts it; the server on one
core and the load on another. Servers take turns in short runs, and the median of the runs counts.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec
import uvloop

from bench.inside import import_ms
from bench.load import over_http, over_pipe
from bench.procs import COMMANDS, ROOT, cpu_ns, pin_load, port_of, resident_bytes, server

WORKLOADS = ("plain", "mrtr", "wizard")
CONNECTIONS = (1, 32)
STDIO = ("antiphon", "mcpserver", "node")

Key = tuple[str, str, int]


class Goal(NamedTuple):
    """A ratio to reach."""

    what: str
    measured: float
    bound: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound


def http(names: list[str], seconds: float, repeats: int) -> dict[Key, float]:
    """Microseconds per request of each server, workload and number of connections."""
    seen: dict[Key, list[float]] = {}
    memory: dict[str, int] = {}
    with ExitStack() as stack:
        processes = {name: stack.enter_context(server(name, "http")) for name in names}
        ports = {name: port_of(process) for name, process in processes.items()}
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            # The first turn warms up (a compiler, a cache) and is not counted.
            for turn in range(repeats + 1):
                for workload in WORKLOADS:
                    for connections in CONNECTIONS:
                        for name, process in processes.items():
                            cost = _one(
                                runner, process, ports[name], workload, connections, seconds
                            )
                            if turn:
                                seen.setdefault((name, workload, connections), []).append(cost)
        memory = {name: resident_bytes(process.pid) for name, process in processes.items()}
    medians = {key: statistics.median(costs) for key, costs in seen.items()}
    _table(names, medians, memory)
    return medians


def _one(
    runner: asyncio.Runner,
    process: "subprocess.Popen[bytes]",
    port: int,
    workload: str,
    connections: int,
    seconds: float,
) -> float:
    def cpu() -> int:
        return cpu_ns(process.pid)

    requests, spent = runner.run(over_http(port, workload, connections, seconds, cpu))
    return spent / requests / 1000


def _table(names: list[str], costs: dict[Key, float], memory: dict[str, int]) -> None:
    print(f"\nHTTP, microseconds per request at {' / '.join(map(str, CONNECTIONS))} connections")
    print(f"{'':12}" + "".join(f"{w:>18}" for w in WORKLOADS) + f"{'MB':>8}")
    for name in names:
        cells = "".join(
            f"{' / '.join(f'{costs[name, w, c]:.0f}' for c in CONNECTIONS):>18}" for w in WORKLOADS
        )
        print(f"{name:12}{cells}{memory[name] / 1e6:8.0f}")


def stdio(names: list[str], seconds: float, repeats: int) -> dict[tuple[str, int], float]:
    """Microseconds per request of one MRTR call on a pipe, one at a time and 32 in flight."""
    seen: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        processes = {name: stack.enter_context(server(name, "stdio")) for name in names}
        for turn in range(repeats + 1):
            for flying in CONNECTIONS:
                for name, process in processes.items():

                    def cpu(pid: int = process.pid) -> int:
                        return cpu_ns(pid)

                    requests, spent = over_pipe(
                        process, "mrtr", flying, seconds, cpu, time.monotonic
                    )
                    if turn:
                        seen.setdefault((name, flying), []).append(spent / requests / 1000)
    medians = {key: statistics.median(costs) for key, costs in seen.items()}
    print("\nstdio, mrtr, microseconds per request, one at a time / 32 in flight")
    for name in names:
        print(f"{name:12}{' / '.join(f'{medians[name, c]:.0f}' for c in CONNECTIONS):>18}")
    return medians


def inside(what: str) -> Any:
    """Run one part of `bench.inside` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.inside", what],
        cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return msgspec.json.decode(done.stdout)


def http_goals(costs: dict[Key, float]) -> list[Goal]:
    """Goals of one MRTR round at 32 connections."""
    ours = costs["antiphon", "mrtr", 32]
    goals: list[Goal] = []
    for peer, bound in (("mcpserver", 14), ("fastmcp", 28), ("node", 12), ("lowlevel", 7)):
        if (peer, "mrtr", 32) in costs:
            goals.append(Goal(f"mrtr: ours / {peer}", ours / costs[peer, "mrtr", 32], 1 / bound))
    for workload in WORKLOADS:
        rate = costs["bare", workload, 32] / costs["antiphon", workload, 32]
        goals.append(Goal(f"{workload}: rate of the bare application", rate, 0.85, at_most=False))
    return goals


def stdio_goals(costs: dict[tuple[str, int], float]) -> list[Goal]:
    """Goals of one MRTR round on a pipe."""
    return [
        goal
        for flying in CONNECTIONS
        for goal in (
            Goal(
                f"stdio, {flying} in flight: ours / mcpserver",
                costs["antiphon", flying] / costs["mcpserver", flying],
                1 / 10,
            ),
            Goal(
                f"stdio, {flying} in flight: ours / node",
                costs["antiphon", flying] / costs["node", flying],
                1.0,
            ),
        )
    ]


def inside_goals(http_round: float | None) -> list[Goal]:
    """Goals of what happens inside one process."""
    costs: dict[str, float] = inside("shapes")
    print("\ninside one process, microseconds of a whole call")
    for name, cost in costs.items():
        print(f"{name:28}{cost:8.1f}")
    slope, second = inside("growth")
    print(f"one recorded answer adds {slope:.2f} to a round of {second:.1f}")
    live, again = inside("parked")
    print(f"round with ten answers: parked {live:.1f}, replayed {again:.1f}")
    goals = [
        Goal("asking nothing: linear / native", costs["quiet linear"] / costs["quiet native"], 1.1),
        Goal("ten answers: parked / replayed", live / again, 1.0),
        Goal("bytes of a parked frame / 10 KiB", inside("memory") / 10_240, 1.0),
    ]
    if http_round is not None:
        goals.append(Goal("growth per recorded answer / HTTP round", slope / http_round, 0.03))
    return goals


def import_goal() -> Goal:
    """The goal of the import."""
    ours, theirs = import_ms("antiphon"), import_ms("mcp.server")
    print(f"\nimport: antiphon {ours:.0f} ms, mcp.server {theirs:.0f} ms")
    return Goal("import antiphon / import mcp.server", ours / theirs, 0.25)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("parts", nargs="*", default=["http", "stdio", "inside", "import"])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one run")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each kind")
    parser.add_argument("--servers", default=",".join(COMMANDS), help="which, with commas")
    options = parser.parse_args()
    pin_load()
    names = options.servers.split(",")
    goals: list[Goal] = []
    http_round: float | None = None
    if "http" in options.parts:
        costs = http(names, options.seconds, options.repeats)
        http_round = costs["antiphon", "mrtr", 32]
        goals += http_goals(costs)
    if "stdio" in options.parts:
        goals += stdio_goals(stdio(list(STDIO), options.seconds, options.repeats))
    if "inside" in options.parts:
        goals += inside_goals(http_round)
    if "import" in options.parts:
        goals.append(import_goal())
    print(f"\n{'goal':44}{'measured':>10}{'bound':>10}")
    for goal in goals:
        sign = "<=" if goal.at_most else ">="
        met = "met" if goal.met else "MISSED"
        print(f"{goal.what:44}{goal.measured:10.3f} {sign} {goal.bound:.3f}   {met}")


if __name__ == "__main__":
    main()
