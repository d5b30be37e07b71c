"""Other people's clients against one server, in each era they speak, over HTTP and stdio."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.child_processes import command, environment, http_server

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent / "peers"
PEERS = ROOT / ".peers"
DESK = "tests.legacy.asking_server:server"

PYTHON = [sys.executable, str(HERE / "python_client.py"), "sdk"]
FASTMCP = [str(PEERS / "fastmcp" / "bin" / "python"), str(HERE / "python_client.py"), "fastmcp"]
MCP1 = [str(PEERS / "mcp1" / "bin" / "python"), str(HERE / "mcp1_client.py")]
NODE = [str(PEERS / "bin" / "node"), str(HERE / "ts_client.mjs")]

CLIENTS = {
    "mcp 2.3, auto": ([*PYTHON, "auto"], "modern 2026-07-28"),
    "mcp 2.3, legacy": ([*PYTHON, "legacy"], "legacy 2025-11-25"),
    "mcp 1.30": (MCP1, "legacy 2025-11-25"),
    "fastmcp 4, auto": ([*FASTMCP, "auto"], "modern 2026-07-28"),
    "fastmcp 4, legacy": ([*FASTMCP, "legacy"], "legacy 2025-11-25"),
    "typescript client 2.4, auto": ([*NODE, "client", "auto"], "modern 2026-07-28"),
    "typescript client 2.4, legacy": ([*NODE, "client", "legacy"], "legacy 2025-11-25"),
    "typescript sdk 1.32": ([*NODE, "sdk1", "legacy"], "legacy 2025-11-25"),
}
ANSWERS = {
    "form": "orders in eu, 3",
    "sample": "said",
    "roots": "file:///desk",
    "decline": "declined",
    "two_rounds": "Ada likes green after 2",
    "together": "eu/said/1",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    async with http_server(DESK) as url:
        yield url


async def run_client(program: list[str], *target: str) -> dict[str, str]:
    process = await asyncio.create_subprocess_exec(
        *program,
        *target,
        cwd=ROOT,
        env=environment(
            {
                "PEERS_NODE": str(PEERS / "node" / "here.js"),
                "FASTMCP_CHECK_FOR_UPDATES": "off",
                "PYTHONPATH": str(ROOT) if program[0] == sys.executable else "",
                "PATH": os.environ["PATH"],
            }
        ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(40):
            out, said = await process.communicate()
    except TimeoutError:
        process.kill()
        _, said = await process.communicate()
        raise AssertionError(f"the client hangs: {said.decode()[-2000:]}") from None
    assert process.returncode == 0, said.decode()[-2000:]
    return json.loads(out.decode().splitlines()[-1])


def check(found: dict[str, str], era: str) -> None:
    assert found.pop("about").startswith(f"{era} Elicit,Sample,ListRoots True")
    assert found == ANSWERS


@pytest.mark.requirement("LEGACY-20")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_completes_every_kind_of_ask_over_http(name: str, url: str) -> None:
    program, era = CLIENTS[name]
    check(await run_client(program, "http", url), era)


@pytest.mark.requirement("LEGACY-20")
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_completes_every_kind_of_ask_over_stdio(name: str) -> None:
    program, era = CLIENTS[name]
    check(await run_client(program, "stdio", *command(DESK, "--stdio")), era)
