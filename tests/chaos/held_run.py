"""One run of held calls under chaos: clients of every kind, people who decide, a judgement."""

import asyncio
import json
import random
import re
import secrets
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from antiphon.protocol.request import MODERN
from antiphon.stores import open_store
from tests.chaos.chaos_run import store_of
from tests.chaos.deployment import deployed
from tests.chaos.failpoints import HELD_POINTS, Points
from tests.transports.wire import mirrored, request

APPROVERS = 8
PATIENCE = 300.0
"""Seconds for one call, whatever goes wrong meanwhile."""

HOST = "127.0.0.1"
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"elicitation": {"form": {}}},
    {"elicitation": {"url": {}}},
    {"extensions": {"io.modelcontextprotocol/tasks": {}}},
)


@dataclass
class HeldHeard:
    """What clients and approvers were told."""

    done: dict[str, str] = field(default_factory=dict[str, str])
    declined: set[str] = field(default_factory=set[str])
    """Orders that somebody has refused."""

    lost: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])


@dataclass(frozen=True)
class HeldRun:
    """How many calls, and how much goes wrong."""

    calls: int
    kills: int
    chance: float
    lease: float

    def on(self, name: str) -> "HeldVerdict":
        """Run on a store."""
        with tempfile.TemporaryDirectory(prefix="antiphon-held-", ignore_cleanup_errors=True) as at:
            folder = Path(at)
            folder.chmod(0o755)
            (folder / "effects").touch()
            with (
                store_of(name, folder) as (url, _),
                deployed(
                    folder, url, secrets.token_hex(32), kills=self.kills, pauses=0,
                    chance=self.chance, lease=self.lease, points=HELD_POINTS,
                    application="tests.chaos.held_server",
                ) as port,
            ):  # fmt: skip
                return asyncio.run(self._play(port, folder, url, name))

    async def _play(self, port: int, folder: Path, url: str, name: str) -> "HeldVerdict":
        heard = HeldHeard()
        over = asyncio.Event()
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20.0) as http:
            people = [
                asyncio.create_task(Approver(http, heard, f"person-{n}").work(over))
                for n in range(APPROVERS)
            ]
            async with asyncio.TaskGroup() as group:
                for number in range(self.calls):
                    client = HeldClient(http, heard, KINDS[number % len(KINDS)], f"user-{number}")
                    group.create_task(client.call(f"order-{number}"))
            over.set()
            await asyncio.gather(*people)
        store: Any = open_store(url).for_server("chaos")
        await store.open()
        try:
            decisions = await store.decisions("chaos", limit=10 * self.calls)
        finally:
            await store.close()
        return HeldVerdict(name, self.calls, heard, folder_effects(folder), list(decisions),
                           Points.hits(folder))  # fmt: skip


class HeldClient:
    """A client that calls again until it has heard what became of its refund."""

    def __init__(self, http: Any, heard: HeldHeard, can: dict[str, Any], user: str) -> None:
        self._http = http
        self._heard = heard
        self._can = can
        self._user = user

    async def call(self, order: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                self._heard.done[order] = await self._until_done(order)
        except TimeoutError:
            self._heard.lost.append(order)

    async def _until_done(self, order: str) -> str:
        task = ""
        while True:
            result = await self._send(order, task)
            if result is not None:
                task = result.get("taskId", task)
                result = result.get("result") or result
                for part in result.get("content", ()):
                    if not part["text"].startswith("Not done yet"):
                        return part["text"]
            await asyncio.sleep(random.uniform(0.5, 2.0))

    async def _send(self, order: str, task: str) -> Any:
        params: dict[str, Any] = {"name": "refund", "arguments": {"order": order}}
        method = "tasks/get" if task else "tools/call"
        if task:
            params = {"taskId": task}
        meta = {"io.modelcontextprotocol/clientCapabilities": self._can}
        message = request(method, meta=meta, **params)
        more = {"mcp_name": task} if task else {}
        headers = dict(mirrored(message, x_user=self._user, host=None, **more))
        try:
            answer = await self._http.post("/mcp", content=json.dumps(message), headers=headers)
            return answer.json().get("result") if answer.status_code == 200 else None
        except (httpx2.HTTPError, ValueError) as error:
            self._heard.counts[f"replies broken: {type(error).__name__}"] += 1
            return None


class Approver:
    """Somebody who looks at the inbox and decides, and does so again when the page was lost."""

    def __init__(self, http: Any, heard: HeldHeard, name: str, *, refuses: bool = True) -> None:
        self._http = http
        self._heard = heard
        self._refuses = refuses
        self._headers = {
            "host": HOST, "origin": f"http://{HOST}", "sec-fetch-site": "same-origin",
            "x-person": name, "mcp-protocol-version": MODERN,
        }  # fmt: skip
        self._cookies: dict[str, str] = {}
        self._place = ""

    async def work(self, over: asyncio.Event) -> None:
        while not over.is_set():
            with suppress(httpx2.HTTPError, ValueError, KeyError, TypeError):
                await self._look()
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), 0.05)

    async def _look(self) -> None:
        if not self._cookies:
            answer = await self._ask("GET", "/mcp/console/login")
            self._cookies = dict(answer.cookies.items())
            self._place = answer.headers["location"].partition("/mcp/")[0]
        page = await self._ask("GET", f"{self._place}/mcp/console/inbox")
        if page.status_code == 303:
            self._cookies = {}
            return
        places = re.findall(r'href="(/s-[\w-]+/mcp/console/ask/\w+)"', page.text)
        for place in random.sample(places, min(len(places), 10)):
            await self._decide(place)

    async def _decide(self, place: str) -> None:
        page = await self._ask("GET", place)
        fields = dict(re.findall(r'name="(token|digest|shown)" value="([^"]*)"', page.text))
        order = re.search(r"Refund ([a-z]+-\d+)\?", page.text)
        if len(fields) < 3 or order is None:
            return
        no = self._refuses and int(order[1].rpartition("-")[2]) % 5 == 0
        if no:
            self._heard.declined.add(order[1])
        form = {**fields, "choice": "decline" if no else "approve", "note": ""}
        answer = await self._ask("POST", place, data=form)
        self._heard.counts[f"decisions answered {answer.status_code}"] += 1

    async def _ask(self, method: str, path: str, **more: Any) -> Any:
        cookie = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        headers = {**self._headers, "cookie": cookie}
        return await self._http.request(method, path, headers=headers, **more)


def folder_effects(folder: Path) -> list[tuple[str, str]]:
    """Return the refunds that have happened, each with its receipt."""
    lines = (folder / "effects").read_text().splitlines()
    return [(order, receipt) for order, receipt, _ in map(str.split, lines)]


@dataclass(frozen=True)
class HeldVerdict:
    """What came of a run."""

    name: str
    calls: int
    heard: HeldHeard
    effects: list[tuple[str, str]]
    decisions: list[Any]
    hits: Counter[str]

    def __str__(self) -> str:
        kills = sum(self.hits.values())
        return (
            f"held calls, {self.name}: {self.calls} calls, {kills} kills, "
            f"{len(self.effects)} refunds, {len(self.decisions)} decisions, "
            f"{len(self.heard.lost)} lost; {dict(self.heard.counts)}"
        )

    def check(self) -> None:
        """Hold the promises: once each, never without a yes, and everybody is told."""
        paid = dict(self.effects)
        approved = Counter(one.decision for one in self.decisions)
        assert self.heard.lost == [], "a call had no end"
        assert len(paid) == len(self.effects), "a refund happened twice"
        for order, text in self.heard.done.items():
            if order in self.heard.declined:
                assert text == "not refunded: declined", (order, text)
            else:
                assert text == f"refunded {order} {paid.get(order)}", (order, text)
        assert not set(paid) & self.heard.declined, "a refund although somebody said no"
        assert len(paid) == approved["approve"], "a refund without a decision"
        assert len(paid) + len(self.heard.declined) == self.calls
        assert set(self.hits) == set(HELD_POINTS), "some failpoint was never hit"
