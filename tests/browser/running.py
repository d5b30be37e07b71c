"""The shop as processes: a server, its pages beside it or alone, and what a test does to them."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from antiphon.apps.console.app import ConsoleApp
from antiphon.console import Person
from antiphon.protocol.inbox import DecisionRecord
from antiphon.protocol.retry import back_off
from antiphon.seal.keyring import generate_key
from tests.browser.shop import LOGIN, NAME, PAID, STORE, URL, make_shop
from tests.child_processes import PATIENCE, ROOT, environment
from tests.servers import free_port
from tests.transports.wire import mirrored, request

TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
FORMS = {"elicitation": {"form": {}}}


class Process:
    """A command of ours that serves until it is ended."""

    def __init__(self, env: Mapping[str, str], *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "antiphon.cli.app", *words],
            cwd=ROOT,
            env=environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        self._up = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)
            if re.search(r"Serving on http://", line):
                self._up.set()
        self._up.set()

    async def serving(self) -> None:
        """Wait until it serves."""
        await asyncio.to_thread(self._up.wait, PATIENCE)
        assert self._process.poll() is None, "".join(self.log)

    def end(self) -> None:
        """End it as an operator does."""
        self._process.terminate()
        self._stopped()

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._stopped()

    def _stopped(self) -> None:
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self._process.stderr is not None
        self._process.stderr.close()


class RunningShop:
    """A shop that is served, and what a test does besides using a browser."""

    def __init__(
        self, store: str, folder: Path, *, alone: bool, login: str = "", name: str = "shop"
    ) -> None:
        self.paid = folder / f"paid-{uuid4().hex}.txt"
        self.paid.touch()
        self._ports = (free_port(), free_port() if alone else 0)
        self.alone = alone
        self.origin = f"http://127.0.0.1:{self._ports[1] or self._ports[0]}"
        self.url = f"{self.origin}/console"
        self._env = {
            NAME: name,
            STORE: store,
            URL: self.url,
            LOGIN: login,
            PAID: str(self.paid),
            "ANTIPHON_KEYS": generate_key(),
        }
        self._mcp = f"http://127.0.0.1:{self._ports[0]}/mcp"
        self._processes: dict[str, Process] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator["RunningShop"]:
        """Serve until the end of the tests that use it."""
        async with httpx.AsyncClient(timeout=PATIENCE) as self._client:
            try:
                await self.start()
                async with make_shop(self._env).inbox() as self._inbox:
                    yield self
            finally:
                for process in self._processes.values():
                    process.end()

    async def start(self, *names: str) -> None:
        """Start the server, and its pages where they stand alone."""
        commands = {"server": ("serve", self._ports[0])}
        if self.alone:
            commands["pages"] = ("console", self._ports[1])
        for name in names or commands:
            command, port = commands[name]
            self._processes[name] = Process(
                self._env, command, "tests.browser.served:server", "--http", f"127.0.0.1:{port}"
            )
        for process in self._processes.values():
            await process.serving()

    def kill_pages(self) -> str:
        """Kill the process that serves the pages; returns its name for `start`."""
        name = "pages" if self.alone else "server"
        self._processes.pop(name).kill()
        return name

    async def send(self, method: str, user: str, *, forms: bool = False, **params: Any) -> Any:
        """Send one request of a client that takes tasks, and perhaps forms; returns its result."""
        can = {**TASKS, **FORMS} if forms else TASKS
        message = request(
            method, meta={"io.modelcontextprotocol/clientCapabilities": can}, **params
        )
        name = {"mcp_name": params["taskId"]} if "taskId" in params else {}
        headers = [
            (key, value) for key, value in mirrored(message, x_user=user, **name) if key != b"host"
        ]
        answer = await self._client.post(self._mcp, json=message, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]

    async def call(self, tool: str, user: str, *, forms: bool = False, **arguments: Any) -> str:
        """Call a tool; returns the task that waits for people."""
        made = await self.send("tools/call", user, forms=forms, name=tool, arguments=arguments)
        return made["taskId"]

    async def refund(self, role: str, user: str, order: str = "", **more: Any) -> "Refund":
        """Call the tool whose refunds the role approves."""
        order = order or uuid4().hex[:8]
        task = await self.call("refund", user, order=order, role=role, **more)
        return Refund(self, user, order, task)

    async def ended(self, task: str, user: str) -> str:
        """Wait for a call to end; returns the text of its result."""
        async with asyncio.timeout(PATIENCE):
            for pause in back_off(0.02, 0.2):
                seen = await self.send("tasks/get", user, taskId=task)
                if seen["status"] not in ("working", "input_required"):
                    return seen["result"]["content"][0]["text"]
                await asyncio.sleep(pause)
        raise AssertionError

    def times_paid(self, order: str) -> int:
        return self.paid.read_text().split().count(order)

    async def link(self, person: Person) -> str:
        """Return an address that signs this person in, once."""
        return await self.inbox.make_link(person)

    @property
    def inbox(self) -> ConsoleApp:
        return self._inbox

    async def decisions(self, subject: str) -> list[DecisionRecord]:
        """Return what somebody has decided."""
        return [one async for one in self.inbox.decisions() if one.subject == subject]


class Refund:
    """A refund that waits for somebody."""

    def __init__(self, shop: RunningShop, user: str, order: str, task: str) -> None:
        self._shop = shop
        self._user = user
        self.order = order
        self.task = task
        self.message = f"Refund 120.00 EUR for order {order}?"

    async def ended(self) -> str:
        return await self._shop.ended(self.task, self._user)

    @property
    def times_paid(self) -> int:
        return self._shop.times_paid(self.order)
