"""`python -m bench.layers`: one application behind each HTTP layer, in one interleaved run.

Microseconds of processor time per request, and each against the bare application under uvicorn in
the same turn: the median of the paired ratios. `--fresh` changes the arguments on every call.
"""

import argparse
import asyncio
import json
import statistics
import sys
from contextlib import ExitStack
from typing import Any

import uvloop

from bench.load import over_http
from bench.procs import COMMANDS, cpu_ns, pin_load, port_of, server
from bench.story import ANSWER, EXPECTED, META, NAME, Caller

LAYERS = (
    ("bare", "uvicorn"),
    ("bare", "own"),
    ("bare", "granian"),
    ("antiphon", "uvicorn"),
    ("antiphon", "own"),
    ("antiphon", "granian"),
)


class Fresh(Caller):
    """A client whose every call has other arguments, of another length, and another trace."""

    _calls = 0

    def request(self, before: Any = None) -> bytes:
        if before is None:
            Fresh._calls += 1
            name = f"shop-{Fresh._calls * 7919 % 10 ** (1 + Fresh._calls % 9)}"
            meta = {**META, "io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"}}
            self._expected = EXPECTED[self.workload].replace(NAME, name)
            self._answer = json.dumps({"action": "accept", "content": ANSWER})
            self._head = (
                f'","method":"tools/call","params":{{"name":"{self.workload}",'
                f'"arguments":{{"name":"{name}"}},"_meta":{json.dumps(meta)}'
            )
        return super().request(before)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.layers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--workloads", default="mrtr,wizard,plain")
    parser.add_argument("--layers", default=",".join(f"{a}+{b}" for a, b in LAYERS))
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args()
    pin_load()
    layers = [tuple(one.split("+")) for one in options.layers.split(",")]
    names = {f"{app} on {layer}": (app, layer) for app, layer in layers}
    own = [sys.executable, "-m", "bench.servers.layers"]
    commands: Any = COMMANDS
    commands.update({name: [*own, app] for name, (app, _) in names.items()})
    make = Fresh if options.fresh else Caller
    seen: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(server(name, layer)) for name, (_, layer) in names.items()
        }
        ports = {name: port_of(process) for name, process in processes.items()}
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for turn in range(options.repeats + 1):
                for workload in options.workloads.split(","):
                    for name, process in processes.items():
                        requests, spent = runner.run(
                            over_http(
                                ports[name], workload, options.connections, options.seconds,
                                lambda pid=process.pid: cpu_ns(pid), make,
                            )
                        )  # fmt: skip
                        if turn:
                            seen.setdefault((name, workload), []).append(spent / requests / 1000)
    base = next(iter(names))
    print(f"{'microseconds per request, times ' + base:38}", end="")
    print("".join(f"{workload:>18}" for workload in options.workloads.split(",")))
    for name in names:
        cells = ""
        for workload in options.workloads.split(","):
            costs = seen[name, workload]
            ratio = statistics.median(
                cost / bare for cost, bare in zip(costs, seen[base, workload], strict=True)
            )
            cells += f"{statistics.median(costs):10.0f} {ratio:5.2f} x"
        print(f"{name:38}{cells}")


if __name__ == "__main__":
    main()
