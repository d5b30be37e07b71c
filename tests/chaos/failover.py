"""`python -m tests.chaos.failover`: the primary of PostgreSQL fails, and a standby is promoted.

Two servers, a worker and the console are processes of their own, and clients make calls of several
rounds, tasks and refunds that people approve. With a synchronous standby every call must complete
and no effect may happen twice, without an operator. With an asynchronous one that lags, no effect
happens twice either: what was lost is uncertain and is listed by `antiphon calls lost`.
"""

import argparse
import asyncio
import json
import random
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psycopg

from tests import servers
from tests.chaos.held_run import Approver, HeldHeard
from tests.child_processes import environment
from tests.servers import PATIENCE, ROOT, free_port
from tests.transports.wire import mirrored, request

TASKS = "io.modelcontextprotocol/tasks"
CAN = {"elicitation": {"form": {}}, "extensions": {TASKS: {}}}
META = {"io.modelcontextprotocol/clientCapabilities": CAN}
APPROVERS = 4


@dataclass(frozen=True)
class FailoverRun:
    """What goes wrong, and for how long."""

    how: str
    """`kill`, `freeze` or `switchover`: the primary is read-only at first, and then stopped."""

    away: float
    """Seconds until the standby is promoted."""

    synchronous: bool
    calls: int
    """Of each kind."""

    lease: float
    begin: float = 12.0
    """Seconds over which the calls begin; the failure comes in the middle."""


@dataclass
class Ends:
    """How the calls ended."""

    complete: dict[str, str] = field(default_factory=dict[str, str])
    uncertain: dict[str, str] = field(default_factory=dict[str, str])
    forgotten: dict[str, str] = field(default_factory=dict[str, str])
    """Tasks that the store does not know any more."""

    failed: dict[str, str] = field(default_factory=dict[str, str])
    refusals: Counter[str] = field(default_factory=Counter[str])
    rounds: list[float] = field(default_factory=list[float])
    """When a round was answered."""


@dataclass(frozen=True)
class FailoverVerdict:
    """What came of a run."""

    run: FailoverRun
    ends: Ends
    effects: Counter[str]
    promoted: float
    lost: list[dict[str, Any]]
    """What `antiphon calls lost` lists."""

    def __str__(self) -> str:
        ends = self.ends
        after = [at for at in ends.rounds if at > self.promoted]
        first = f"{min(after) - self.promoted:.1f} s" if after else "never"
        return (
            f"{self.run.how}, {self.run.away:.0f} s, "
            f"{'synchronous' if self.run.synchronous else 'asynchronous'}: "
            f"{len(ends.complete)} of {3 * self.run.calls} calls complete, "
            f"{len(ends.uncertain)} uncertain, {len(ends.forgotten)} forgotten, "
            f"{len(ends.failed)} failed; {len(self.effects)} effects, "
            f"{sum(count > 1 for count in self.effects.values())} more than once; "
            f"{len(self.lost)} listed as lost; first round {first} after the promotion; "
            f"refused meanwhile: {dict(ends.refusals)}"
        )

    def check(self) -> None:
        """Hold the promises."""
        ends = self.ends
        twice = [name for name, count in self.effects.items() if count > 1]
        assert not ends.failed, ends.failed
        if self.run.synchronous:
            assert not twice, twice
            assert not ends.uncertain, ends.uncertain
            assert not ends.forgotten, ends.forgotten
            assert len(ends.complete) == 3 * self.run.calls
            return
        # A held call that was forgotten is begun again, with another approval.
        assert not [name for name in twice if not name.startswith("refund-")], twice
        listed = {(one["call"], one["key"]) for one in self.lost}
        for label, text in ends.uncertain.items():
            found = re.search(r"effect '([^']+)' of call (\w+)", text)
            assert found is not None, text
            assert (found[2], found[1]) in listed, f"{label} is not listed: {text}"


class FailoverClient:
    """A client that sends each round until something definite comes back."""

    def __init__(self, ports: list[int], ends: Ends, http: Any, until: float) -> None:
        self._ports = ports
        self._ends = ends
        self._http = http
        self._until = until

    async def call(self, tool: str, label: str) -> None:
        """Make one call to its end."""
        ends = self._ends
        try:
            result = await self._played(tool, label)
        except TimeoutError:
            ends.failed[label] = "no end"
            return
        text = " ".join(part["text"] for part in result.get("content", ()))
        if "its end is not known" in text or "their ends are not known" in text:
            ends.uncertain[label] = text
        elif "Unknown or expired task" in text:
            ends.forgotten[label] = text
        elif result.get("isError") or not text.startswith(label):
            ends.failed[label] = text
        else:
            ends.complete[label] = text

    async def _played(self, tool: str, label: str) -> dict[str, Any]:
        start: dict[str, Any] = {"name": tool, "arguments": {"label": label}}
        result = await self._send("tools/call", start, label)
        while True:
            text = " ".join(part["text"] for part in result.get("content", ()))
            if result.get("resultType") == "input_required":
                await asyncio.sleep(random.uniform(0.0, 3.0))
                answers = _answers(result)
                token = result["requestState"]
                params = {**start, "requestState": token, "inputResponses": answers}
                result = await self._send("tools/call", params, label)
            elif result.get("resultType") == "task" or "status" in result:
                result = await self._followed(result["taskId"], label)
            elif text.startswith("Not done yet"):
                await asyncio.sleep(random.uniform(0.5, 2.0))
                result = await self._send("tools/call", start, label)
            else:
                return result

    async def _followed(self, id: str, label: str) -> dict[str, Any]:
        while True:
            task = await self._send("tasks/get", {"taskId": id}, label)
            if "content" in task:
                return task
            if task["status"] in ("completed", "failed", "cancelled"):
                return task.get("result") or {"isError": True, "content": [{"text": str(task)}]}
            message = task.get("statusMessage") or ""
            if "operator" in message:
                return {"isError": True, "content": [{"text": message}]}
            if task["status"] == "input_required":
                answers = {"taskId": id, "inputResponses": _answers(task)}
                await self._send("tasks/update", answers, label)
            await asyncio.sleep(random.uniform(0.2, 1.0))

    async def _send(self, method: str, params: dict[str, Any], label: str) -> dict[str, Any]:
        message = request(method, meta=META, **params)
        headers = dict(mirrored(message, x_user=label, host=None))
        if "taskId" in params:
            headers[b"mcp-name"] = params["taskId"].encode()
        while time.monotonic() < self._until:
            url = f"http://127.0.0.1:{random.choice(self._ports)}/mcp"
            try:
                answer = await self._http.post(url, content=json.dumps(message), headers=headers)
                reply = answer.json()
            except (httpx2.HTTPError, ValueError) as error:
                self._ends.refusals[type(error).__name__] += 1
            else:
                if "result" in reply:
                    self._ends.rounds.append(time.monotonic())
                    return reply["result"]
                text = reply["error"]["message"]
                if reply["error"]["code"] == -32602:
                    return {"isError": True, "content": [{"text": text}]}
                self._ends.refusals[text] += 1
            await asyncio.sleep(random.uniform(0.3, 0.8))
        raise TimeoutError


def _answers(asking: dict[str, Any]) -> dict[str, Any]:
    return {
        key: {"action": "accept", "content": {"word": f"word-{key}"}}
        for key in asking.get("inputRequests") or ()
    }


def _set(server: servers.Postgres, **settings: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        for name, value in settings.items():
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")  # type: ignore[arg-type]
        connection.execute("SELECT pg_reload_conf()")


def _wait_until(server: servers.Postgres, condition: str) -> None:
    end = time.monotonic() + PATIENCE
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        while connection.execute(f"SELECT {condition}").fetchone() != (True,):  # type: ignore[arg-type]
            assert time.monotonic() < end, condition
            time.sleep(0.02)


def fail_over(run: FailoverRun, one: servers.Postgres, two: servers.Postgres) -> None:
    """Take the primary away, and promote the standby when its time has come."""
    if not run.synchronous:
        _set(two, primary_conninfo="")  # it misses what is written from now on
        _wait_until(two, "NOT EXISTS (SELECT 1 FROM pg_stat_wal_receiver)")
        time.sleep(3.0)
    if run.how == "kill":
        one.kill()
    elif run.how == "freeze":
        one.freeze()
    else:
        _set(one, default_transaction_read_only="on")
    time.sleep(run.away)
    if run.how == "switchover":
        one.stop()
    two.promote()
    _set(two, synchronous_standby_names="", default_transaction_read_only="off")


@contextmanager
def processes(run: FailoverRun, folder: Path, url: str) -> Iterator[tuple[list[int], int]]:
    """Start two servers, a worker and the console; gives their ports, the console's apart."""
    environ = environment(
        {
            "ANTIPHON_KEYS": secrets.token_hex(32),
            "FAILOVER_FOLDER": str(folder),
            "FAILOVER_STORE": url,
            "FAILOVER_LEASE": str(run.lease),
        }
    )
    ports = [free_port() for _ in range(3)]
    commands = [
        *(("serve", "--http", f"127.0.0.1:{port}") for port in ports[:2]),
        ("worker",),
        ("console", "--http", f"127.0.0.1:{ports[2]}"),
    ]
    with ExitStack() as stack:
        for number, (name, *options) in enumerate(commands):
            log = stack.enter_context((folder / f"{name}-{number}.log").open("wb"))
            target = "tests.chaos.failover_server:server"
            process = subprocess.Popen(
                [sys.executable, "-m", "antiphon.cli.app", name, target, *options],
                cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            stack.callback(process.wait, PATIENCE)
            stack.callback(process.terminate)
        yield ports[:2], ports[2]


async def _reachable(http: Any, ports: list[int]) -> None:
    end = time.monotonic() + PATIENCE
    for port in ports:
        while True:
            try:
                await http.get(f"http://127.0.0.1:{port}/")
                break
            except httpx2.HTTPError:
                assert time.monotonic() < end, "a process did not start"
                await asyncio.sleep(0.1)


async def play(
    run: FailoverRun, ports: list[int], console: int, one: servers.Postgres, two: servers.Postgres
) -> tuple[Ends, float]:
    """Make the calls while the database fails over; gives their ends, and when it was over."""
    ends, over = Ends(), asyncio.Event()
    limits = httpx2.Limits(max_connections=500)
    async with (
        httpx2.AsyncClient(timeout=60.0, limits=limits) as http,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{console}", timeout=20.0) as pages,
    ):
        await _reachable(http, [*ports, console])
        client = FailoverClient(ports, ends, http, time.monotonic() + run.away + 240.0)

        async def one_call(tool: str, number: int) -> None:
            await asyncio.sleep(random.uniform(0.0, run.begin))
            await client.call(tool, f"{tool}-{number}")

        people = [
            Approver(pages, HeldHeard(), f"person-{number}", refuses=False)
            for number in range(APPROVERS)
        ]
        deciding = [asyncio.create_task(person.work(over)) for person in people]
        async with asyncio.TaskGroup() as group:
            for number in range(run.calls):
                for tool in ("order", "job", "refund"):
                    group.create_task(one_call(tool, number))
            await asyncio.sleep(run.begin / 2)
            await asyncio.to_thread(fail_over, run, one, two)
            promoted = time.monotonic()
        over.set()
        await asyncio.gather(*deciding)
    return ends, promoted


def judge(run: FailoverRun) -> FailoverVerdict:
    """Make one run."""
    with (
        tempfile.TemporaryDirectory(prefix="antiphon-failover-", ignore_cleanup_errors=True) as at,
        servers.own_postgres() as one,
        servers.standby_of(one) as two,
    ):
        folder = Path(at)
        (folder / "effects").touch()
        if run.synchronous:
            _set(one, synchronous_standby_names="*")
            _wait_until(one, "EXISTS (SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync')")
        url = f"postgresql://antiphon@{one.host},{two.host}/postgres"
        try:
            with processes(run, folder, url) as (ports, console):
                ends, promoted = asyncio.run(play(run, ports, console, one, two))
            listed = subprocess.run(
                [sys.executable, "-m", "antiphon.cli.app", "calls", "lost", two.dsn, "--json"],
                cwd=ROOT, capture_output=True, check=True,
            )  # fmt: skip
            lost = json.loads(listed.stdout)["effects"]
        finally:
            if run.how == "freeze":
                one.thaw()
            else:
                one.start()
        lines = (folder / "effects").read_text().splitlines()
        effects = Counter(" ".join(line.split()[:2]) for line in lines)
        return FailoverVerdict(run, ends, effects, promoted, lost)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.failover", description=__doc__)
    parser.add_argument("--how", choices=("kill", "freeze", "switchover"), action="append")
    parser.add_argument("--away", type=float, action="append", help="seconds; 25 and 60 unless set")
    parser.add_argument("--asynchronous", action="store_true", help="the standby lags")
    parser.add_argument("--calls", type=int, default=60, help="of each of three kinds")
    parser.add_argument("--lease", type=float, default=5.0)
    options = parser.parse_args()
    for how in options.how or ("kill", "freeze", "switchover"):
        for away in options.away or (25.0, 60.0):
            run = FailoverRun(how, away, not options.asynchronous, options.calls, options.lease)
            verdict = judge(run)
            print(verdict, flush=True)
            verdict.check()


if __name__ == "__main__":
    main()
