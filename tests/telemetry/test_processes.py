"""One call through two servers, a worker and a client, each a process that exports its own spans;
and what a scrape of `/metrics` shows."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon import Client
from antiphon.client.errors import RemoteError
from antiphon.client.flow_types import PendingCall
from antiphon.testing import KEY
from tests.child_processes import PATIENCE, ROOT, environment

SERVER = "tests.telemetry.traced_server:server"


@asynccontextmanager
async def started(
    *arguments: str, env: Mapping[str, str], until: str
) -> AsyncIterator[re.Match[str]]:
    """Run a command of ours until what it says on standard error has matched; end it after."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "antiphon.cli.app", *arguments,
        cwd=ROOT, env=environment(env), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    said, found = "", None
    try:
        async with asyncio.timeout(PATIENCE):
            while found is None:
                line = await process.stderr.readline()
                assert line, said
                said += line.decode()
                found = re.search(until, said, re.DOTALL)
        yield found
    finally:
        process.terminate()
        await process.communicate()


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "spans").mkdir()
    return {
        "SPANS": str(tmp_path / "spans"),
        "ANTIPHON_KEYS": KEY,
        "ANTIPHON_STORE": f"sqlite:///{tmp_path / 'store.db'}",
    }


def spans_by_process(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        file.stem: [json.loads(line) for line in file.read_text().splitlines()]
        for file in folder.iterdir()
    }


ANSWER = {"name": {"action": "accept", "content": {"name": "orders"}}}
URL = r"(http://127\.0\.0\.1:\d+/mcp)"


@pytest.mark.timeout(120)
async def test_one_call_is_one_trace_through_two_servers_a_worker_and_a_client(
    env: dict[str, str],
) -> None:
    serve = ("serve", SERVER, "--http", "127.0.0.1:0")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(started(*serve, env=env, until=URL))
        second = await stack.enter_async_context(started(*serve, env=env, until=URL))
        running = started("worker", SERVER, env=env, until="Running tasks")
        await stack.enter_async_context(running)
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.telemetry.traced_client", first[1], second[1],
            cwd=ROOT, env=environment(env), stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE):
            said, _ = await client.communicate()
    assert said.decode().strip() == "built orders 1"

    processes = spans_by_process(Path(env["SPANS"]))
    assert len(processes) == 4
    everything = [span for spans in processes.values() for span in spans]
    calls = [one for one in everything if one["name"] in ("tools/call build", "execute_tool build")]
    rounds = {
        one["attributes"].get("antiphon.round", 1): one
        for one in calls
        if one["kind"] == "SpanKind.SERVER"
    }
    (run,) = (one for one in calls if one["attributes"].get("antiphon.run"))
    begun, resumed = (one for one in calls if one["name"] == "execute_tool build" and one != run)

    # One trace, in whichever process a span was made.
    assert {one["context"]["trace_id"] for one in calls} == {begun["context"]["trace_id"]}
    # Round two, in the other process, and the run in the worker link to round one.
    round_one = rounds[1]["context"]["span_id"]
    assert [link["context"]["span_id"] for link in rounds[2]["links"]] == [round_one]
    assert [link["context"]["span_id"] for link in run["links"]] == [round_one]
    assert run["parent_id"] == round_one
    # Each round is below the request of the client, which is below the client's part of the call.
    sent = {one["context"]["span_id"]: one for one in calls if one["kind"] == "SpanKind.CLIENT"}
    assert [sent[rounds[number]["parent_id"]]["parent_id"] for number in (1, 2)] == [
        begun["context"]["span_id"],
        resumed["context"]["span_id"],
    ]
    assert resumed["parent_id"] == begun["context"]["span_id"]
    assert rounds[2]["attributes"] == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2026-07-28",
        "jsonrpc.request.id": sent[rounds[2]["parent_id"]]["attributes"]["jsonrpc.request.id"],
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "build",
        "antiphon.outcome": "task",
        "antiphon.call": run["attributes"]["antiphon.call"],
        "antiphon.round": 2,
    }
    assert "orders" not in json.dumps(everything)


def series(text: str, name: str, label: str) -> dict[str, float]:
    lines = (line for line in text.splitlines() if line.startswith(name + "{"))
    found: dict[str, float] = {}
    for line in lines:
        value = re.search(rf'[{{,]{label}="([^"]*)"', line)
        assert value, line
        found[value[1]] = found.get(value[1], 0) + float(line.rpartition(" ")[2])
    return found


def changed(token: str, at: int) -> str:
    return token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]


@pytest.mark.timeout(120)
async def test_a_scrape_shows_the_refusals_of_a_tamper_run_by_reason(env: dict[str, str]) -> None:
    options = ("--http", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    until = r"(http://127\.0\.0\.1:\d+/metrics).*" + URL
    async with (
        started("serve", SERVER, *options, env=env, until=until) as found,
        Client(found[2]) as client,
        httpx.AsyncClient() as web,
    ):
        token = (await client.begin_call(PendingCall.tool("build", {}))).saved.call.token
        assert token is not None
        tampered = [changed(token, at) for at in range(8, len(token) - 1, len(token) // 6)]
        attempts = [({}, bad) for bad in (*tampered, "nonsense", token[: len(token) // 2])]
        attempts.append(({"size": 2}, token))
        for arguments, state in attempts:
            with pytest.raises(RemoteError, match="-32602"):
                await client.request(
                    "tools/call",
                    {
                        "name": "build",
                        "arguments": arguments,
                        "requestState": state,
                        "inputResponses": ANSWER,
                    },
                )
        shown = (await web.get(found[1])).text
        public = await web.get(found[2].replace("/mcp", "/metrics"))
    reasons = series(shown, "antiphon_tokens_refused_total", "reason")
    assert sum(reasons.values()) == len(attempts)
    assert reasons["arguments"] == 1
    assert len(reasons) > 1, reasons
    outcomes = series(shown, "antiphon_rounds_total", "outcome")
    assert outcomes == {"input_required": 1, "error": len(attempts)}
    assert "mcp_server_operation_duration_seconds_count{" in shown
    assert public.status_code == 404
