"""Two machines behind the nginx of the docs: old clients keep their sessions there."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest

from tests.chaos.deployment import nginx
from tests.legacy.test_peers import CLIENTS, DESK, check, run_client
from tests.processes.running import ready


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    """Two servers of two workers each that share keys and a store; the port of nginx."""
    env = {
        "ANTIPHON_KEYS": secrets.token_hex(32),
        "ANTIPHON_STORE": f"sqlite:///{tmp_path / 'ledger.db'}",
    }
    async with AsyncExitStack() as stack:
        ports: list[int] = []
        for name in ("a", "b"):
            folder = tmp_path / name
            folder.mkdir()
            machine = await stack.enter_async_context(ready(2, folder=folder, env=env, target=DESK))
            ports.append(httpx2.URL(machine.url).port or 0)
        yield stack.enter_context(nginx(tmp_path, ports))


@pytest.mark.parametrize("name", ["mcp 2.3, auto", "mcp 2.3, legacy", "mcp 1.30"])
async def test_a_client_completes_every_kind_of_ask_through_nginx(name: str, port: int) -> None:
    program, era = CLIENTS[name]
    check(await run_client(program, "http", f"http://127.0.0.1:{port}/mcp"), era)
