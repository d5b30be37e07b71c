"""A person at a desk who uses the command line, and a shop that they sign in to."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from antiphon import OAuth
from antiphon.cli.app import app
from tests.auth.issuer import Issuer
from tests.auth.shop import by_uvicorn, shop
from tests.cli.running import ANTIPHON, Ran, environment

ROOT = Path(__file__).resolve().parents[2]
BROWSER = f"{sys.executable} {ROOT / 'tests' / 'auth' / 'browser.py'} %s"


class Desk:
    """A person's own folder and browser, and the shop's address."""

    def __init__(self, url: str, home: Path) -> None:
        self.url = url
        self.home = home
        self.env = {
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home),
            "APPDATA": str(home),
            "BROWSER": BROWSER,
            "PERSON": "carl",
            "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        }

    async def run(self, *words: str, **env: str) -> Ran:
        """Run a command in this process, beside the event loop that serves."""
        own = environment(**{**self.env, **env})
        done = await asyncio.to_thread(CliRunner(env=own).invoke, app, words)
        return Ran(done.exit_code, done.stdout, done.stderr)

    async def spawned(self, *words: str, **env: str) -> Ran:
        """Run a command as a process of its own."""
        process = await asyncio.create_subprocess_exec(
            *ANTIPHON,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(**{**self.env, **env}),
        )
        async with asyncio.timeout(50):
            out, err = await process.communicate()
        assert process.returncode is not None
        return Ran(process.returncode, out.decode(), err.decode())

    async def call(self, tool: str, *more: str, **env: str) -> Ran:
        return await self.run("call", self.url, tool, *more, **env)

    @property
    def files(self) -> list[Path]:
        return list(self.home.rglob("logins/*.json"))

    @property
    def login(self) -> dict[str, Any]:
        (file,) = self.files
        return json.loads(file.read_text())["login"]


@asynccontextmanager
async def desk(issuer: Issuer, home: Path) -> AsyncIterator[Desk]:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    auth = OAuth(issuer.url, audience=url, scopes=["mcp"])
    async with by_uvicorn(shop(issuer, auth=auth), listener):
        yield Desk(url, home)
