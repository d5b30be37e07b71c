"""Run the official suite, pinned, against our server and our client, and judge what it found.

    python -m conformance.run server client --revision 2026-07-28 --must '^json-schema'

Exit status: 0 when every scenario that counts passed, 1 when one did not, 2 when the suite could
not be run. A scenario counts when the revision requires it or `--must` matches it.
"""

import argparse
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.judge import (
    Bucket,
    Leg,
    Scenario,
    Verdict,
    judge,
    lines,
    plan,
    read_results,
    totals,
)

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".peers"
NODE = PEERS / "bin" / "node"
SUITE = PEERS / "node" / "node_modules" / "@modelcontextprotocol" / "conformance"
PYTHON = shlex.quote(sys.executable)
REVISIONS = ("2026-07-28", "2025-11-25")
START_LIMIT = 30.0
"""Seconds for the server to come up."""


Plans = dict[tuple[Leg, str], list[Scenario]]


class CannotRun(Exception):
    """The suite could not be run; says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    legs: list[Leg]
    revisions: list[str]
    scenarios: list[str]
    must: re.Pattern[str] | None
    url: str | None
    gateway: bool
    limit: int
    output: Path
    quiet: bool


def main() -> int:
    options = read_options()
    try:
        found = run(options)
    except CannotRun as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    print(f"results: {options.output}")
    print(f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped")
    if found["failed"]:
        return 1
    return 0 if found["passed"] else 2


def read_options() -> Options:
    parser = argparse.ArgumentParser(prog="python -m conformance.run", description=__doc__)
    parser.add_argument("legs", nargs="+", choices=["server", "client"])
    parser.add_argument("--revision", action="append", choices=REVISIONS)
    parser.add_argument("--scenario", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--must", type=re.compile, help="unscored scenarios that count here too")
    parser.add_argument("--url", help="judge a server that runs already")
    parser.add_argument("--gateway", action="store_true", help="judge it through a gateway")
    parser.add_argument("--limit", type=int, default=60, help="seconds for one scenario")
    parser.add_argument("--output", type=Path, help="where to keep what the suite writes")
    parser.add_argument("--quiet", action="store_true", help="leave out scenarios that passed")
    given = parser.parse_args()
    output = given.output or Path(tempfile.mkdtemp(prefix="antiphon-conformance-"))
    return Options(
        legs=list(dict.fromkeys(given.legs)),
        revisions=given.revision or list(REVISIONS),
        scenarios=given.scenario,
        must=given.must,
        url=given.url,
        gateway=given.gateway,
        limit=given.limit,
        output=output.resolve(),
        quiet=given.quiet,
    )


def run(options: Options) -> Counter[Bucket]:
    if not (NODE.exists() and SUITE.is_dir()):
        raise CannotRun("the suite is not installed; `make peers` installs it")
    plans: Plans = {
        (leg, revision): chosen(options, leg, revision)
        for leg in options.legs
        for revision in options.revisions
    }
    if not any(plans.values()):
        raise CannotRun(f"no such scenario: {', '.join(options.scenarios)}")
    found: Counter[Bucket] = Counter()
    if "server" in options.legs:
        with server_under_test(options) as url:
            for revision in options.revisions:
                found += report(
                    options, "server", revision, run_server(options, revision, plans, url)
                )
    if "client" in options.legs:
        for revision in options.revisions:
            found += report(options, "client", revision, run_client(options, revision, plans))
    return found


def chosen(options: Options, leg: Leg, revision: str) -> list[Scenario]:
    scenarios = plan(read_requirements(revision), leg, options.must)
    wanted = options.scenarios
    return [one for one in scenarios if one.name in wanted] if wanted else scenarios


def read_requirements(revision: str) -> dict[str, Any]:
    """The suite writes them in YAML and brings a reader for it."""
    script = (
        "console.log(JSON.stringify(require('yaml').parse(require('fs').readFileSync(0, 'utf8'))))"
    )
    text = (SUITE / "requirements" / f"{revision}.yaml").read_text("utf-8")
    done = subprocess.run(
        [NODE, "-e", script],
        cwd=PEERS / "node",
        input=text,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def run_server(options: Options, revision: str, plans: Plans, url: str) -> list[Verdict]:
    scenarios = plans["server", revision]
    folder = options.output / f"server-{revision}"
    suite(options, ["server", "--url", url], scenarios, revision, folder)
    found = read_results(folder, "server")
    return [judge(one, found.get(one.name)) for one in scenarios]


def run_client(options: Options, revision: str, plans: Plans) -> list[Verdict]:
    """All at once as the suite does it, some forty processes; what failed then is tried alone."""
    scenarios = plans["client", revision]
    folder = options.output / f"client-{revision}"
    with client_program(options) as program:
        suite(options, ["client", "--command", program], scenarios, revision, folder)
    found = read_results(folder, "client")
    first = [judge(one, found.get(one.name)) for one in scenarios]
    again = [one.scenario for one in first if one.scenario.counts and one.bucket == "failed"]
    arguments = ["client", "--command", f"exec {PYTHON} -m conformance.client"]
    folder = options.output / f"client-{revision}-alone"
    for scenario in again:
        one_scenario(options, arguments, scenario, revision, folder)
    found = read_results(folder, "client") if again else {}
    return [
        judge(one.scenario, found.get(one.scenario.name), alone=True)
        if one.scenario in again
        else one
        for one in first
    ]


@contextmanager
def client_program(options: Options) -> Iterator[str]:
    """Load the client once for all scenarios; gives the command that becomes one of its forks."""
    # `exec`: at its limit the suite ends the shell only, then waits for who holds the output.
    if not hasattr(os, "fork"):
        yield f"exec {PYTHON} -m conformance.client"
        return
    options.output.mkdir(parents=True, exist_ok=True)
    log = options.output / "clients.log"
    with tempfile.TemporaryDirectory() as folder, log.open("wb") as stream:
        where = Path(folder) / "clients"
        process = subprocess.Popen(
            [sys.executable, "-m", "conformance.forking", where],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        try:
            await_socket(process, where, log)
            yield f"exec {PYTHON} -S conformance/forked.py {shlex.quote(str(where))}"
        finally:
            end(process)


def await_socket(process: subprocess.Popen[bytes], where: Path, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(where))
        except OSError:
            time.sleep(0.05)
        else:
            return
    told = log.read_text("utf-8", errors="replace")[-2000:]
    raise CannotRun(f"the client could not be loaded; it said:\n{told}")


def suite(
    options: Options, arguments: list[str], scenarios: list[Scenario], revision: str, folder: Path
) -> None:
    if options.scenarios:
        for scenario in scenarios:
            one_scenario(options, arguments, scenario, revision, folder)
        return
    whole = options.limit * max(len(scenarios), 1)
    start_suite([*arguments, "--requirements", revision], options, folder, whole)


def one_scenario(
    options: Options, arguments: list[str], scenario: Scenario, revision: str, folder: Path
) -> None:
    alone = ["--scenario", scenario.name]
    # An extension's scenario chooses its own wire and refuses to be told a revision.
    version = [] if scenario.why == "extension" else ["--spec-version", revision, "--force"]
    start_suite([*arguments, *alone, *version], options, folder, options.limit * 2)


def start_suite(arguments: list[str], options: Options, folder: Path, limit: float) -> None:
    """Run the suite in a process group of its own, so that what a client leaves behind ends too."""
    folder.mkdir(parents=True, exist_ok=True)
    shared = ["--timeout", str(options.limit * 1000), "--output-dir", str(folder)]
    with (folder / "suite.log").open("ab") as log:
        process = subprocess.Popen(
            [NODE, SUITE / "dist" / "index.js", *arguments, *shared],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            print(f"the suite was ended after {limit:.0f} s", file=sys.stderr)
        finally:
            end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def server_under_test(options: Options) -> Iterator[str]:
    if options.url:
        yield options.url
        return
    with serving(options, "server", "serve", "conformance.server:server") as url:
        if not options.gateway:
            yield url
            return
        with serving(options, "gateway", "gateway", url, "--store", "memory:") as through:
            yield through


@contextmanager
def serving(options: Options, name: str, *arguments: str) -> Iterator[str]:
    """Run a command of ours that serves on a port; gives the URL."""
    port = free_port()
    program = Path(sys.executable).with_name("antiphon")
    where = f"127.0.0.1:{port}"
    options.output.mkdir(parents=True, exist_ok=True)
    log = options.output / f"{name}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [program, *arguments, "--http", where],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        try:
            await_server(process, port, log)
            yield f"http://{where}/mcp"
        finally:
            end(process)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def await_server(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    told = log.read_text("utf-8", errors="replace")[-2000:]
    raise CannotRun(f"the server did not come up; it said:\n{told}")


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def report(options: Options, leg: Leg, revision: str, verdicts: list[Verdict]) -> Counter[Bucket]:
    counted = totals(verdicts)
    print(f"== {leg} {revision}: {len(verdicts)} scenarios")
    for verdict in verdicts:
        if not (options.quiet and verdict.state == "PASS"):
            print("\n".join(lines(verdict)), flush=True)
    told = ", ".join(f"{counted[bucket]} {bucket}" for bucket in ("passed", "failed", "skipped"))
    print(f"-- {leg} {revision}: {told} of the scenarios that count\n", flush=True)
    return counted


if __name__ == "__main__":
    sys.exit(main())
