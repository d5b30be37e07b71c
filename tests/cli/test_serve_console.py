"""`antiphon serve` and the console's pages: beside stdio, at shutdown, two on one machine."""

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.console import Console
from tests.cli.running import ANTIPHON, environment
from tests.cli.test_inbox import Folder
from tests.transports.wire import request

PATIENCE = 40.0


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


class Stdio:
    """A server on pipes, as hosts start them."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.said = ""

    async def until_it_says(self, words: str) -> None:
        assert self._process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while words not in self.said:
                line = await self._process.stderr.readline()
                assert line, self.said
                self.said += line.decode()

    async def refund(self, order: str) -> str:
        """Call the tool as a client that can do nothing."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        message = request(name="refund", arguments={"order": order})
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            answer: Any = json.loads(await self._process.stdout.readline())
        return answer["result"]["content"][0]["text"]


@asynccontextmanager
async def on_stdio(folder: Folder) -> AsyncIterator[Stdio]:
    """Start the shop on pipes with its pages; it ends when its client does."""
    process = await asyncio.create_subprocess_exec(
        *ANTIPHON, "serve", "shop:server", "--stdio", "--console",
        cwd=folder.path, env=environment(ANTIPHON_KEYS=folder.keys),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Stdio(process)
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0
    finally:
        with suppress(ProcessLookupError):
            process.kill()


async def test_the_pages_stand_beside_a_server_on_stdio(folder: Folder) -> None:
    async with on_stdio(folder) as shop:
        await shop.until_it_says(f"Serving on {folder.origin}/console")
        assert "Not done yet" in await shop.refund("4711")
        said = await folder.decide("approve", "--as", "anna", "--role", "finance")
        assert said.startswith("Approved by anna")
        assert await shop.refund("4711") == "Refunded 4711"
    assert folder.paid() == ["4711"]


async def test_a_second_server_on_stdio_serves_its_client_without_the_port(folder: Folder) -> None:
    async with on_stdio(folder) as first:
        await first.until_it_says("Serving on")
        async with on_stdio(folder) as second:
            await second.until_it_says("not served here")
            assert "Not done yet" in await second.refund("4711")
        await folder.decide("approve", "--as", "anna", "--role", "finance")
        assert "4711" in await first.refund("4711")


def test_a_server_without_pages_is_told_so(folder: Folder) -> None:
    for words in (["--console"], ["--console", "--stdio"]):
        ran = folder.run("serve", "shop:plain", *words)
        assert ran.code == 2
        assert "Server(console=Console(...))" in " ".join(ran.err.split())


@pytest.mark.parametrize("command", ["serve", "console"])
async def test_an_open_page_does_not_hold_up_the_end_of_the_server(
    folder: Folder, command: str
) -> None:
    at = f"127.0.0.1:{folder.port}"
    process = await asyncio.create_subprocess_exec(
        *ANTIPHON, command, "shop:server", "--http", at,
        cwd=folder.path, env=environment(ANTIPHON_KEYS=folder.keys),
        stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    await Stdio(process).until_it_says("Serving on")
    async with (
        folder.signed_in("--as", "anna", "--role", "finance") as browser,
        browser.stream("GET", "/console/events") as events,
        asyncio.timeout(PATIENCE),
    ):
        chunks = events.aiter_bytes()
        assert b"retry" in await anext(chunks)
        process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        async for _ in chunks:
            pass
        assert await process.wait() == 0
        assert time.monotonic() - begun < 10, "the grace is 30 seconds"


def test_two_consoles_on_one_machine_have_cookies_of_their_own() -> None:
    names = {Console(f"http://127.0.0.1:{port}/console").cookie for port in (8401, 8402)}
    assert len(names) == 2
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)


async def test_signing_in_to_one_console_leaves_the_other_signed_in(tmp_path: Path) -> None:
    from tests.console.console_inbox import ANNA, BO, OURS, ConsoleInbox

    here, there = ConsoleInbox(), ConsoleInbox(url="http://127.0.0.1:8402/console")
    async with here.signed_in(ANNA) as browser:
        other = "http://127.0.0.1:8402"
        transport = httpx.ASGITransport(there.app)
        async with httpx.AsyncClient(transport=transport, base_url=other) as second:
            second.cookies = browser.cookies
            link = await there.app.make_link(BO)
            await second.post(link, headers={**OURS, "origin": other})
            browser.cookies.update(second.cookies)
        page = await browser.get("/console/inbox")
        assert page.status_code == 200
        assert "Anna Berg" in page.text
