"""`python -m bench`: every figure, its goal, and whether it is met. `make bench` calls it.

Processor time of the server's process for each request, as the system counts it; the server on one
core and the load on another. Servers take turns in short runs, every answer is checked, and a ratio
is the median of the ratios of runs that followed one another. Tables and a chart are written to
`bench/results/` after each part, so that a run that is interrupted leaves what it has found; a run
of chosen parts only prints. Ends with an error when a goal is missed, a part or a server fails, and
says which; everything else is measured nevertheless. Says on standard error how far it is. For a
quick look: `--seconds 0.5 --repeats 1`.
"""

import argparse
import asyncio
import itertools
import statistics
import subprocess
import sys
import time
import traceback
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import msgspec
import uvloop

from bench import carriers, gateway, growth, inbox, latency, report
from bench.alone import counted_beside_console
from bench.inside import import_ms
from bench.load import over_http, over_pipe
from bench.procs import COMMANDS, ROOT, cpu_ns, installed, on_every_core, pin_load, port_of, server
from bench.story import Caller, Wrong

CONNECTIONS = 32
WORKLOADS = ("plain", "mrtr", "wizard")
VARIED = ("plain varied", "mrtr varied")
"""The same with messages that differ in every call; the peers' stories have one name only."""

STDIO = ("antiphon", "mcpserver", "node")
SHOWN = {
    "serve": "antiphon serve",
    "serve full": "antiphon serve, auth+telemetry",
    "serve sqlite": "antiphon serve, SQLite",
    "antiphon": "antiphon asgi, uvicorn",
    "bare": "bare ASGI, uvicorn",
}
HOW = {
    "serve": ("serve", "plain"),
    "serve full": ("serve", "full"),
    "serve sqlite": ("serve", "sqlite"),
}
"""How a server is asked to serve; `http` where nothing is said."""

ONLY_MRTR = ("serve full", "serve sqlite")

Runs = dict[tuple[str, str], list[float]]
"""Microseconds per request of each run, by server and workload."""


class Goal(NamedTuple):
    """A ratio to reach."""

    what: str
    measured: float
    bound: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound


def say(text: str) -> None:
    """Say how far the benchmark is."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class HttpRuns:
    """Loads every server in turn, with every workload that it is measured with."""

    def __init__(self, seconds: float, repeats: int) -> None:
        self.seconds = seconds
        self.repeats = repeats
        self.runs: Runs = {}
        self.failed: dict[str, str] = {}
        """Servers that are left out from their first failure on, and what it was."""

    def all(self, names: list[str]) -> None:
        """Measure these servers; the first turn warms up (a compiler, a cache) and is not kept."""
        with ExitStack() as stack:
            servers = {name: self._started(stack, name) for name in names}
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                for turn in range(self.repeats + 1):
                    say(f"http: turn {turn} of {self.repeats}, {len(servers)} servers")
                    for workload, name in itertools.product((*WORKLOADS, *VARIED), names):
                        if name not in self.failed and _measured(name, workload):
                            self._one(runner, name, workload, servers[name], turn)
        for key in [key for key in self.runs if key[0] in self.failed]:
            del self.runs[key]

    def _started(self, stack: ExitStack, name: str) -> tuple[int, int]:
        try:
            process = stack.enter_context(server(name, *HOW.get(name, ("http",))))
            return process.pid, port_of(process)
        except (OSError, RuntimeError) as error:
            self._fail(name, error)
            return 0, 0

    def _one(
        self,
        runner: asyncio.Runner,
        name: str,
        workload: str,
        started: tuple[int, int],
        turn: int,
    ) -> None:
        story, _, varied = workload.partition(" ")
        pid, port = started
        load = over_http(
            port,
            story,
            CONNECTIONS,
            self.seconds if turn else self.seconds / 2,
            partial(cpu_ns, pid),
            partial(Caller, vary=bool(varied)),
        )
        try:
            requests, spent = runner.run(load)
        except (OSError, TimeoutError, Wrong) as error:
            self._fail(name, error)
        else:
            if turn:
                self.runs.setdefault((name, workload), []).append(spent / requests / 1000)

    def _fail(self, name: str, error: Exception) -> None:
        self.failed[name] = f"{name} failed: {type(error).__name__}: {str(error)[:300]}"
        say(self.failed[name])


def _measured(name: str, workload: str) -> bool:
    if name in ONLY_MRTR:
        return workload == "mrtr"
    return workload in WORKLOADS or name in ("serve", "antiphon", "bare")


def http_table(names: list[str], runs: Runs) -> str:
    """Return the medians as a table."""
    head = ["µs of processor time per request", *WORKLOADS, *VARIED]
    rows = [
        [SHOWN.get(name, name)]
        + [f"{statistics.median(runs[name, w]):.0f}" if (name, w) in runs else "" for w in head[1:]]
        for name in names
    ]
    return report.table(head, rows)


def ratio(runs: Runs, over: str, under: str, workload: str) -> float | None:
    """Return the median of the ratios of paired runs; None where one was not measured."""
    pairs = (runs.get((over, workload)), runs.get((under, workload)))
    if pairs[0] is None or pairs[1] is None:
        return None
    return statistics.median(a / b for a, b in zip(*pairs, strict=True))


def http_goals(runs: Runs) -> list[Goal]:
    """Return the goals of what a request costs."""
    wanted: list[tuple[str, str, str, str, float, bool]] = [
        ("asgi(): rate of the bare application", "bare", "antiphon", "mrtr", 0.70, False),
        ("asgi(): rate of the bare application", "bare", "antiphon", "wizard", 0.65, False),
        ("asgi(): rate of the bare application", "bare", "antiphon", "plain", 0.80, False),
        ("serve: rate of the bare application", "bare", "serve", "mrtr", 1.0, False),
        ("serve: rate of the bare application", "bare", "serve", "wizard", 0.85, False),
        ("serve / MCPServer", "serve", "mcpserver", "mrtr", 1 / 14, True),
        ("serve / FastMCP", "serve", "fastmcp", "mrtr", 1 / 28, True),
        ("serve / Node", "serve", "node", "mrtr", 1 / 12, True),
        ("serve / low-level", "serve", "lowlevel", "mrtr", 1 / 7, True),
        ("with authentication and telemetry / without", "serve full", "serve", "mrtr", 1.25, True),
        ("with SQLite / MCPServer", "serve sqlite", "mcpserver", "mrtr", 1 / 5, True),
    ]
    goals: list[Goal] = []
    for what, over, under, workload, bound, at_most in wanted:
        found = ratio(runs, over, under, workload)
        if found is not None:
            goals.append(Goal(f"{workload}: {what}", found, bound, at_most))
    return goals


def stdio(seconds: float, repeats: int) -> tuple[str, list[Goal]]:
    """Load the servers on a pipe, 32 calls in flight; return a table and the goals."""
    seen: dict[str, list[float]] = {}
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(server(name, "stdio")) for name in STDIO if installed(name)
        }
        for turn in range(repeats + 1):
            say(f"stdio: turn {turn} of {repeats}")
            for name, process in processes.items():
                cpu = partial(cpu_ns, process.pid)
                requests, spent = over_pipe(
                    process, "mrtr", CONNECTIONS, seconds, cpu, time.monotonic
                )
                if turn:
                    seen.setdefault(name, []).append(spent / requests / 1000)
    costs = {name: statistics.median(runs) for name, runs in seen.items()}
    rows = [[name, f"{cost:.0f}"] for name, cost in costs.items()]
    pairs = zip(seen["antiphon"], seen["mcpserver"], strict=True)
    found = statistics.median(ours / theirs for ours, theirs in pairs)
    goal = Goal("stdio: antiphon / MCPServer", found, 1 / 10)
    return report.table(["stdio, mrtr, 32 in flight", "µs"], rows), [goal]


def tails(seconds: float, repeats: int) -> tuple[str, list[Goal]]:
    """Measure latencies at 70 % of our own saturation; return a table and the goals."""
    runs = latency.measure("wizard", seconds, repeats)
    middle = sorted(runs, key=lambda run: run.p99)[len(runs) // 2]
    rows = [
        [name, f"{middle.rate:.0f}", *(f"{value:.2f}" for value in found)]
        for name, found in (("antiphon serve", middle.ours), ("bare ASGI, uvicorn", middle.bare))
    ]
    goals = [
        Goal("wizard: p99 / bare", statistics.median(run.p99 for run in runs), 1.5),
        Goal("wizard: worst request / bare", statistics.median(run.worst for run in runs), 1.5),
    ]
    head = ["wizard at 70 % of saturation", "requests/s", "p50 ms", "p99 ms", "worst ms"]
    return report.table(head, rows), goals


def apart(module: str, what: str) -> Any:
    """Run one part of a module in a process of its own; return what it printed as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", module, what],
        cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=1_800,
    )  # fmt: skip
    return msgspec.json.decode(done.stdout)


def growth_table() -> tuple[str, dict[str, Any]]:
    """Measure the growth lines."""
    rows: list[list[str]] = []
    lines: dict[str, Any] = {}
    for what in growth.LINES:
        say(f"growth: one more {what}")
        line = {int(n): cost for n, cost in apart("bench.growth", what).items()}
        slope = growth.slope(line)
        shown = ", ".join(f"{n:,}: {cost:.0f}" for n, cost in line.items())
        rows.append([what, shown, f"{slope:.4f}"])
        lines[what] = {"costs": line, "slope": slope}
    return report.table(["for one more", "µs by number", "slope, µs"], rows), lines


def inside_goals(http_round: float | None) -> tuple[str, list[Goal]]:
    """Measure what happens inside one process."""
    slope, second = apart("bench.inside", "growth")
    live, again = apart("bench.inside", "parked")
    rows = [
        ["one recorded answer adds to a round", f"{slope:.2f}"],
        ["the second round, without HTTP", f"{second:.1f}"],
        ["a round with ten answers, parked", f"{live:.1f}"],
        ["a round with ten answers, replayed", f"{again:.1f}"],
    ]
    goals = [Goal("ten answers: parked / replayed", live / again, 1.0)]
    if http_round is not None:
        goals.append(Goal("a recorded answer / a round of mrtr", slope / http_round, 0.03))
    return report.table(["inside one process", "µs"], rows), goals


def inbox_goals() -> tuple[str, list[Goal]]:
    """Measure an inbox with 100,000 open questions, and a round beside a console."""
    found = list(inbox.ratios())
    rows = [[what, f"{few:.2f}", f"{many:.2f}"] for what, few, many in found]
    goals = [
        Goal(f"{what}: 100,000 open / a page", many / few, inbox.TIMES) for what, few, many in found
    ]
    instructions = asyncio.run(counted_beside_console())
    goals += [
        Goal(f"{workload} with / without a console, instructions", times, 1.09)
        for workload, times in instructions.items()
    ]
    return report.table(["inbox, ms", "one page", "100,000"], rows), goals


def import_goal() -> Goal:
    """Measure the import."""
    return Goal(
        "import antiphon / mcp.server", import_ms("antiphon") / import_ms("mcp.server"), 0.25
    )


def goals_table(goals: list[Goal]) -> str:
    """Return every goal with what was measured."""
    rows = [
        [
            goal.what,
            f"{goal.measured:.3f}",
            f"{'<=' if goal.at_most else '>='} {goal.bound:.3f}",
            "met" if goal.met else "MISSED",
        ]
        for goal in goals
    ]
    return report.table(["goal", "measured", "bound", ""], rows)


class Measured:
    """What the parts of one run have found."""

    def __init__(self) -> None:
        self.goals: list[Goal] = []
        self.tables: dict[str, str] = {}
        self.figures: dict[str, Any] = {}
        self.bars: dict[str, float] = {}
        self.failed: list[str] = []

    def http(self, names: list[str], seconds: float, repeats: int) -> None:
        """Measure what a request costs over HTTP."""
        measuring = HttpRuns(seconds, repeats)
        measuring.all(names)
        self.failed += measuring.failed.values()
        runs, names = measuring.runs, [n for n in names if n not in measuring.failed]
        self.tables["HTTP, 32 connections"] = http_table(names, runs)
        self.figures["http"] = {
            f"{name}, {workload}": costs for (name, workload), costs in runs.items()
        }
        self.bars = {SHOWN.get(n, n): statistics.median(runs[n, "mrtr"]) for n in names}
        self.goals += http_goals(runs)

    def add(self, title: str, measured: tuple[str, list[Goal]]) -> None:
        """Add a table and its goals."""
        self.tables[title] = measured[0]
        self.goals += measured[1]

    def part(self, name: str, names: list[str], seconds: float, repeats: int) -> None:
        """Measure one part of the benchmark."""
        match name:
            case "http":
                self.http(names, seconds, repeats)
            case "latency":
                self.add("Latency", tails(seconds, repeats))
            case "stdio":
                self.add("stdio", stdio(seconds, repeats))
            case "inside":
                round = self.bars.get(SHOWN["serve"])
                self.add("Inside one process", inside_goals(round))
            case "growth":
                self.tables["Growth"], self.figures["growth"] = growth_table()
            case "import":
                self.goals.append(import_goal())
            case "inbox":
                self.add("Inbox", inbox_goals())
            case "gateway":
                self.add("Gateway", (gateway.run(seconds, repeats), []))
            case "carriers":
                with on_every_core():
                    tables, found = carriers.run(samples=40, waiting=100_000, seconds=2.0, idle=100)
                self.add("Carriers of task runs", (tables, [Goal(*goal) for goal in found]))
            case _:
                raise SystemExit(f"no part {name!r}: {', '.join(PARTS)}")

    def write(self, facts: dict[str, str]) -> None:
        """Write everything down."""
        tables = {"Goals": goals_table(self.goals), **self.tables}
        self.figures["goals"] = [goal._asdict() for goal in self.goals]
        report.write(facts, tables, self.figures, self.bars)

    def tables_of_all(self) -> str:
        """Return every table, the goals first."""
        return "\n\n".join([goals_table(self.goals), *self.tables.values()])


PARTS = ("http", "latency", "stdio", "inside", "import", "growth", "inbox", "gateway", "carriers")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one run")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each kind")
    parser.add_argument("--servers", default=",".join(COMMANDS), help="which, with commas")
    options = parser.parse_args()
    facts = report.about()
    pin_load()
    names = [name for name in options.servers.split(",") if installed(name)]
    measured = Measured()
    failed = measured.failed
    for number, part in enumerate(options.parts, 1):
        started = time.monotonic()
        say(f"{part}: part {number} of {len(options.parts)}")
        try:
            measured.part(part, names, options.seconds, options.repeats)
        except Exception as error:
            traceback.print_exc()
            failed.append(f"{part} failed: {type(error).__name__}")
        say(f"{part}: took {time.monotonic() - started:.0f} s")
        if set(options.parts) == set(PARTS):
            measured.write(facts)
    print(measured.tables_of_all())
    missing = [name for name in options.servers.split(",") if name not in names]
    failed += [f"{name} is not installed: make peers" for name in missing]
    failed += [f"missed: {goal.what}" for goal in measured.goals if not goal.met]
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
