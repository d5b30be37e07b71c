"""`antiphon inbox` and `antiphon console`: each a process of its own beside a server that runs."""

import asyncio
import json
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.client import Client, Deny
from antiphon.seal.keyring import generate_key
from tests.cli.running import ANTIPHON, Ran, environment
from tests.console.console_inbox import form_of, go_to_place, statuses

MODULE = '''
from antiphon import Console, Context, Principal, Server
from antiphon.console import OneTimeLink

ROLES = {{"finance": "grp-finance"}}
CONSOLE = Console("http://127.0.0.1:{port}/console", roles=ROLES)


def who(scope):
    return Principal("one-time-link", "carl")


def make(**more):
    server = Server("shop", principal=who, **more)

    async def pay_back(order):
        with open("paid", "a") as book:
            book.write(order + chr(10))
        return order

    @server.tool(holds=True)
    async def refund(ctx: Context, order: str) -> str:
        """Refund an order."""
        approval = await ctx.approve(f"Refund {{order}}?", by="finance", grace=0.1)
        if not approval:
            return f"Not refunded: {{approval.outcome}}."
        return "Refunded " + await ctx.once("refund", pay_back, order)

    return server


server = make(console=CONSOLE, store="sqlite:///shop.db")
in_memory = make(console=CONSOLE, store="memory://")
other_login = make(
    console=Console("http://127.0.0.1:{port}/console", login=lambda request: None),
    store="sqlite:///shop.db",
)
open_roles = make(console=Console("http://127.0.0.1:{port}/console"), store="sqlite:///shop.db")
plain = Server("plain")
'''


class Folder:
    """A folder with a server's module, and commands that run in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.keys = generate_key()
        self.said = ""
        (path / "shop.py").write_text(MODULE.format(port=self.port))

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, *words: str, **env: str) -> Ran:
        """Run a command to its end, without a terminal."""
        done = subprocess.run(
            [*ANTIPHON, *words],
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=50,
            env=environment(**{"ANTIPHON_KEYS": self.keys, **env}),
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def said_while_serving(self, *words: str) -> str:
        """Start a command that serves, and end it; gives what it said on the way."""
        with self.started(*words):
            pass
        return self.said

    @contextmanager
    def started(self, *words: str) -> Iterator[str]:
        """Start a command that serves; yields where."""
        with subprocess.Popen(
            [*ANTIPHON, *words],
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(ANTIPHON_KEYS=self.keys),
        ) as process:
            assert process.stderr is not None
            seen = ""
            try:
                for line in process.stderr:
                    seen += line
                    self.said = seen
                    if found := re.search(r"Serving on (http://\S+)", seen):
                        yield found[1]
                        break
                else:
                    pytest.fail(f"it did not start:\n{seen}")
            finally:
                process.send_signal(signal.SIGINT)
                process.stderr.read()
                assert process.wait(20) == 0

    @asynccontextmanager
    async def signed_in(self, *words: str) -> AsyncIterator[httpx.AsyncClient]:
        """A browser that has used the link which the command printed."""
        ran = await asyncio.to_thread(self.run, "inbox", "shop:server", *words)
        assert ran.code == 0, ran.err
        link = ran.out.strip()
        assert link.startswith(f"{self.origin}/console/link/")
        headers = {"origin": self.origin, "sec-fetch-site": "same-origin"}
        async with httpx.AsyncClient(
            base_url=self.origin, headers=headers, follow_redirects=True
        ) as client:
            assert (await client.get(link)).status_code == 200
            signed = await client.post(link)
            assert signed.status_code == 200
            assert (await client.post(link)).status_code == 403, "a link works once"
            go_to_place(client, signed.history[0])
            yield client

    async def decide(self, choice: str, *words: str) -> str:
        """Sign in with a link and decide what waits; returns what the page says then."""
        async with self.signed_in(*words) as browser:
            listed = await browser.get("/console/inbox")
            found = re.search(r'href="[^"]*(/console/ask/\w+)"', listed.text)
            assert found is not None, listed.text
            item = await browser.get(found[1])
            done = await browser.post(found[1], data=form_of(item, choice))
            return statuses(done)[0]

    def paid(self) -> list[str]:
        file = self.path / "paid"
        return file.read_text().split() if file.exists() else []


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def call(url: str, order: str) -> str:
    async with Client(url, answers=Deny(), tasks=False) as client:
        result: Any = await client.call_tool("refund", {"order": order})
        return result.content[0].text


async def test_a_link_signs_in_to_the_server_that_runs(folder: Folder) -> None:
    with folder.started("serve", "shop:server", "--http", f"127.0.0.1:{folder.port}") as url:
        assert "Not done yet" in await call(url, "4711")
        said = await folder.decide("approve", "--as", "anna", "--role", "finance")
        assert said.startswith("Approved by anna")
        assert await call(url, "4711") == "Refunded 4711"
    assert folder.paid() == ["4711"]


async def test_the_pages_alone_decide_and_run_no_tool(folder: Folder) -> None:
    with folder.started("serve", "shop:server", "--http", "127.0.0.1:0") as url:
        assert "Not done yet" in await call(url, "4711")
    with folder.started("console", "shop:server") as pages:
        assert pages == f"{folder.origin}/console"
        async with httpx.AsyncClient(base_url=folder.origin) as client:
            assert (await client.post("/mcp", json={})).status_code == 404
            assert (await client.get("/healthz")).text == "ok"
            assert (await client.get("/readyz")).text == "ready"
        said = await folder.decide("approve", "--as", "anna", "--role", "finance")
        assert said.startswith("Approved by anna")
        async with folder.signed_in("--as", "carl") as carl:
            mine = (await carl.get("/console/inbox?view=mine")).text
            assert "Refund 4711?" in mine
    assert folder.paid() == []
    with folder.started("serve", "shop:server", "--http", "127.0.0.1:0") as url:
        assert await call(url, "4711") == "Refunded 4711"
    assert folder.paid() == ["4711"]


async def test_decisions_are_exported_and_what_was_changed_is_found(folder: Folder) -> None:
    with folder.started("serve", "shop:server", "--http", f"127.0.0.1:{folder.port}") as url:
        for order, choice in (("1", "approve"), ("2", "decline"), ("3", "approve")):
            assert "Not done yet" in await call(url, order)
            await folder.decide(choice, "--as", "anna", "--role", "finance")
    exported = folder.run("inbox", "export", "shop:server")
    assert exported.code == 0, exported.err
    lines = exported.out.splitlines()
    records = [json.loads(line) for line in lines]
    assert [each["decision"] for each in records] == ["approve", "decline", "approve"]
    assert {(each["issuer"], each["subject"]) for each in records} == {("one-time-link", "anna")}
    by_store = folder.run("inbox", "export", "sqlite:///shop.db", "--server", "shop")
    assert by_store.out == exported.out, by_store.err

    file = folder.path / "decisions.jsonl"
    file.write_text(exported.out)
    whole = folder.run("inbox", "verify", file.name)
    assert (whole.code, whole.out.split(";")[0]) == (0, "3 decisions hold")
    for words in (["shop:server"], ["shop.py"], ["sqlite:///shop.db", "--server", "shop"]):
        assert folder.run("inbox", "verify", *words).out == whole.out, words
    file.write_text(f"{lines[0]}\n")
    assert folder.run("inbox", "verify", file.name).out.startswith("1 decision holds; ")
    changed = json.dumps({**records[1], "decision": "approve"}, separators=(",", ":"))
    more = lines[1][:-1] + ',"decision":"decline"}'
    for text, words in (
        ([lines[0], changed, lines[2]], "breaks at decision 2: it was changed"),
        ([lines[0], lines[2]], "breaks at decision 1: the one after it is missing"),
        ([*lines[:2], "{}"], "line 3 is no decision"),
        ([lines[0], more, lines[2]], "line 2 is no decision"),
    ):
        file.write_text("".join(f"{line}\n" for line in text))
        broken = folder.run("inbox", "verify", file.name)
        assert broken.code == 1
        assert words in broken.err
    file.write_text("")
    assert folder.run("inbox", "verify", file.name).out == "no decisions\n"


async def test_calls_show_who_decided_also_where_nothing_was_done(folder: Folder) -> None:
    with folder.started("serve", "shop:server", "--http", f"127.0.0.1:{folder.port}") as url:
        for order, choice in (("1", "approve"), ("2", "decline")):
            assert "Not done yet" in await call(url, order)
            await folder.decide(choice, "--as", "anna", "--role", "finance")
            await call(url, order)
    exported = [json.loads(one) for one in folder.run("inbox", "export", "shop:server").out.split()]
    paid, declined = (each["call"] for each in exported)
    assert all(each["arguments"] for each in exported), "bound to the arguments of their calls"
    assert "approve  by anna (one-time-link anna), signed-in" in (
        folder.run("calls", "show", "sqlite:///shop.db", paid).out
    )
    shown = folder.run("calls", "show", "sqlite:///shop.db", declined)
    assert "asked approve of finance; by now declined" in shown.out
    assert "decline  by anna" in shown.out
    asked = folder.run("calls", "show", "sqlite:///shop.db", declined, "--json").json["asked"]
    assert [(one["status"], len(one["decisions"])) for one in asked] == [("declined", 1)]
    assert folder.run("calls", "show", "sqlite:///shop.db", "none").code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inbox", "shop:in_memory"], "needs a store that they share"),
        (["inbox", "shop:plain"], "Server(console=Console(...))"),
        (["inbox", "shop:server", "--role", "boss"], "Console(roles=...) has finance"),
        (["inbox", "shop:other_login", "--as", "anna"], "sign in on the page"),
        (["inbox", "export", "sqlite:///shop.db"], "--server"),
        (["inbox", "export", "shop:server", "--server", "shop"], "URL of a store"),
        (["inbox", "export", "sqlite:///none.db", "--server", "shop"], "there is no store"),
        (["inbox", "verify", "none.jsonl"], "none.jsonl cannot be read"),
        (["console", "shop:plain"], "Server(console=Console(...))"),
        (["console", "shop:server", "--http", "nowhere"], "HOST:PORT"),
    ],
)
def test_wrong_usage_is_told_with_its_cure(folder: Folder, words: list[str], said: str) -> None:
    ran = folder.run(*words)
    assert (ran.code, ran.out) == (2, "")
    assert said in " ".join(ran.err.split())


def test_a_link_that_no_other_process_would_honour_is_not_made(folder: Folder) -> None:
    for words in (("inbox", "shop:server"), ("console", "shop:server")):
        ran = folder.run(*words, ANTIPHON_KEYS="")
        assert ran.code in (1, 2)
        assert "needs the keys of the processes that accept the calls" in " ".join(ran.err.split())


def test_where_people_sign_in_otherwise_the_address_is_printed(folder: Folder) -> None:
    ran = folder.run("inbox", "shop:other_login")
    assert (ran.code, ran.out) == (0, f"{folder.origin}/console/inbox\n"), ran.err


def test_a_link_to_an_inbox_that_stays_empty_says_so(folder: Folder) -> None:
    wrong = folder.run("inbox", "shop:open_roles", "--as", "anna", "--role", "bos")
    assert wrong.code == 0
    assert "no tool waits for the role 'bos': tools name finance" in wrong.err
    without = folder.run("inbox", "shop:open_roles", "--as", "anna")
    assert "without --role" in without.err
    assert "finance" in without.err
    for role in ("finance", "operator"):
        right = folder.run("inbox", "shop:open_roles", "--as", "anna", "--role", role)
        assert "warning" not in right.err


def test_a_console_on_another_port_is_a_warning_at_the_start(folder: Folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        other = probe.getsockname()[1]
    said = folder.said_while_serving("serve", "shop:server", "--port", str(other))
    assert f"names another port than {other}" in " ".join(said.split())
    said = folder.said_while_serving("serve", "shop:server", "--port", str(folder.port))
    assert "names another port" not in " ".join(said.split())
