"""`antiphon dev` as a command: what it needs, what it says, and what it leaves behind."""

import asyncio
import os
import re
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.running import ANTIPHON, environment
from tests.dev.browsing import NOT_STARTED, WORKSHOP, workshop

pytestmark = pytest.mark.timeout(120)


TOOLS_LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


class Command:
    """A running `antiphon dev`, and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = ""

    async def says(self, text: str) -> None:
        """Wait until it has said something to the person."""
        assert self.process.stderr is not None
        while text not in self.said:
            line = await asyncio.wait_for(self.process.stderr.readline(), 60)
            assert line, f"it ended: {self.said}"
            self.said += line.decode()

    async def ends(self) -> int:
        """Wait for its end; return the exit code."""
        assert self.process.stderr is not None
        self.said += (await asyncio.wait_for(self.process.stderr.read(), 60)).decode()
        return await asyncio.wait_for(self.process.wait(), 30)

    async def link(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), 60)).decode().strip()


@asynccontextmanager
async def command(folder: Path, *words: str, **env: str) -> AsyncIterator[Command]:
    """Run `antiphon dev` with a folder of its own for temporary files."""
    (folder / "tmp").mkdir()
    process = await asyncio.create_subprocess_exec(
        *ANTIPHON, "dev", *words,
        cwd=folder,
        env=environment(TMPDIR=str(folder / "tmp"), LOGNAME="ada", **env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def left(folder: Path) -> list[str]:
    return [path.name for path in (folder / "tmp").iterdir() if path.name.startswith("antiphon")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_before_the_first_start_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "shop.py").write_text("raise SystemExit('not today')")
    async with command(tmp_path, "shop.py") as dev:
        await dev.says(NOT_STARTED)
        assert left(tmp_path)
        dev.process.send_signal(number)
        assert await dev.ends() == 0
    assert "Traceback" not in dev.said
    assert left(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_during_a_slow_start_ends_both_processes(
    tmp_path: Path, number: signal.Signals
) -> None:
    slow = "import os, sys, time\nprint('child', os.getpid(), flush=True)\ntime.sleep(60)\n"
    (tmp_path / "shop.py").write_text(slow)
    async with command(tmp_path, "shop.py") as dev:
        await dev.says("child")
        child = int(dev.said.split("child ")[1].split()[0])
        dev.process.send_signal(number)
        assert await dev.ends() == 0
    assert left(tmp_path) == []
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


async def test_a_port_that_is_taken_is_said_and_no_link_is_printed(tmp_path: Path) -> None:
    shutil.copy(WORKSHOP, tmp_path / "workshop.py")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with command(tmp_path, "workshop.py", "--console-port", port) as dev:
            assert await dev.link() == ""
            assert await dev.ends() == 1
    assert f"cannot listen on 127.0.0.1:{port}" in dev.said
    assert "The link works once" not in dev.said
    assert left(tmp_path) == []


async def test_a_variable_that_the_server_needs_is_named(tmp_path: Path) -> None:
    text = f"import os\nTOKEN = os.environ['SHOP_TOKEN']\n{WORKSHOP.read_text('utf-8')}"
    (tmp_path / "shop.py").write_text(text.replace('"""A server', '"""x', 1))
    async with command(tmp_path, "shop.py") as dev:
        await dev.says(NOT_STARTED)
        assert "KeyError: 'SHOP_TOKEN'" in dev.said
        dev.process.send_signal(signal.SIGINT)
        assert await dev.ends() == 0


async def test_a_file_that_does_not_exist_is_said_at_once(tmp_path: Path) -> None:
    async with command(tmp_path, "nowhere.py") as dev:
        assert await dev.ends() == 2
    assert "there is no file" in dev.said


async def test_only_the_pages_of_this_console_reach_it_and_the_server_has_no_entrance(
    tmp_path: Path,
) -> None:
    async with workshop(tmp_path) as running, httpx.AsyncClient() as browser:
        origin = running.url.removesuffix("/console")
        ours = {"origin": origin, "sec-fetch-site": "same-origin"}
        signed = await browser.post(running.link, headers=ours)
        assert signed.status_code == 303
        pages = origin + signed.headers["location"].removesuffix("/dev")
        page = await browser.get(f"{pages}/dev")
        assert page.status_code == 200
        token = re.findall(r'name="token" value="([^"]*)"', page.text)[0]
        sent = {"token": token, "kind": "tool", "name": "parked", "client": "everything"}
        made: list[tuple[dict[str, str], dict[str, str], int]] = [
            ({"origin": "https://evil.example", "sec-fetch-site": "cross-site"}, sent, 403),
            ({}, sent, 403),
            ({**ours, "host": "evil.example"}, sent, 403),
            (ours, {**sent, "token": "forged"}, 403),
            (ours, {**sent, "name": "nothing"}, 404),
            (ours, sent, 303),
        ]
        for headers, form, status in made:
            answer = await browser.post(f"{pages}/dev/call", data=form, headers=headers)
            assert answer.status_code == status, (headers, form)
        rebound = await browser.get(f"{pages}/dev", headers={"host": "evil.example:80"})
        assert rebound.status_code == 403
        async with httpx.AsyncClient() as nobody:
            for path in ("dev", "dev/events", "ops", "inbox"):
                assert (await nobody.get(f"{running.url}/{path}")).status_code == 303, path
            again = await nobody.post(running.link, headers=ours)
            assert again.status_code != 303, "a link works once"
        forged = await browser.post(f"{pages}/dev/restart", data={"token": ""}, headers=ours)
        assert forged.status_code == 403
        served = re.findall(r"http://127\.0\.0\.1:\d+/mcp", page.text)[0]
        # The server asks for no login here, so no other site may reach it.
        for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
            reached = await browser.post(served, json=TOOLS_LIST, headers=headers)
            assert reached.status_code == 403, headers
        for path in ("dev", "console/dev", "console/dev/events", "debug"):
            found = await browser.get(served.replace("/mcp", f"/{path}"))
            assert found.status_code in (403, 404), path
