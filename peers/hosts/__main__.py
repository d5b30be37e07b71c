"""Drives the clients and writes docs/hosts.md.

`python -m peers.hosts > docs/hosts.md`
"""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from string import Template
from typing import Any

from peers.hosts.story import CALLS
from tests.child_processes import ROOT, environment, http_server

PATIENCE = 120.0
PEERS = ROOT / ".peers"
HOSTS = ROOT / "peers" / "hosts"


@dataclass(frozen=True)
class Host:
    """One client: how the page calls it, and the program that drives it."""

    name: str
    program: tuple[str, ...]
    mute: bool = True
    """Whether it can be without a person who is asked."""

    def command(self, url: str, mode: str) -> list[str]:
        """Return the command for one run."""
        interpreter, *rest = self.program
        file, *more = rest
        return [interpreter, str(HOSTS / file), url, mode, *more]


def _python(peer: str) -> str:
    return str(PEERS / peer / "bin" / "python")


NODE = str(PEERS / "bin" / "node")
CLIENTS = [
    Host("Antiphon `Client`", (sys.executable, "ours.py")),
    Host("official Python client", (sys.executable, "mcp2.py")),
    Host("official Python client, line 1", (_python("mcp1"), "mcp1.py")),
    Host("TypeScript client, modern", (NODE, "typescript.mjs", "client", "auto")),
    Host("TypeScript client, legacy", (NODE, "typescript.mjs", "client", "legacy")),
    Host("TypeScript SDK, line 1", (NODE, "typescript.mjs", "sdk1", "")),
    Host("FastMCP client", (_python("fastmcp"), "fastmcp4.py")),
    Host("LangChain `langchain.mcp`", (_python("langchain"), "langchain1.py"), mute=False),
]


async def drive(host: Host, url: str, mode: str) -> dict[str, Any]:
    """Run one client; return what it printed."""
    env = {
        **environment(),
        "PYTHONPATH": str(ROOT),
        "PEERS_NODE": str(PEERS / "node" / "here.js"),
        "CALLS": json.dumps(CALLS),
    }
    process = await asyncio.create_subprocess_exec(
        *host.command(url, mode),
        cwd=ROOT,
        env={**os.environ, **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            out, wrong = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(f"{host.name}: {wrong.decode(errors='replace')[-2000:]}")
    return json.loads(out.decode().splitlines()[-1])


@dataclass(frozen=True)
class Seen:
    """What one client did, with a person and without."""

    host: Host
    asks: dict[str, Any]
    mute: dict[str, Any] | None


async def see(hosts: list[Host]) -> list[Seen]:
    """Drive clients, one after another, against one server."""
    seen: list[Seen] = []
    async with http_server("peers.hosts.desk:server") as url:
        for host in hosts:
            asks = await drive(host, url, "asks")
            seen.append(Seen(host, asks, await drive(host, url, "mute") if host.mute else None))
    return seen


PAGE = Template((HOSTS / "page.md").read_text(encoding="utf-8"))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


class Texts:
    """The texts that clients read, each once, with a number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def cell(self, said: str) -> str:
        """Return what was read: how it came, and the number of its text."""
        how, colon, text = said.partition(": ")
        if not colon:
            return said
        number = self.numbers.setdefault(text, len(self.numbers) + 1)
        return f"{how if how == 'error result' else f'`{how}`'}, text {number}"

    def listed(self) -> str:
        """Return the texts as a list."""
        return "\n".join(f"{number}. {text}" for text, number in self.numbers.items())


def rows(seen: list[Seen], texts: Texts) -> list[str]:
    """Return the table, line by line."""
    lines = [
        "| client | version | speaks | can ask | cannot ask | with `unable=` | needs tasks |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in seen:
        mute = one.mute["calls"] if one.mute is not None else {}
        cells = [
            one.host.name,
            one.asks["version"],
            one.asks["protocol"],
            f"two questions: {one.asks['calls']['refund']}",
            texts.cell(mute.get("refund", "it always declares forms")),
            texts.cell(mute.get("refund_or_say", "-")),
            texts.cell(one.asks["calls"]["migrate"]),
        ]
        assert len(one.asks["asked"]) == 3, one
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return lines


def approval(seen: list[Seen]) -> str:
    """Return the text of the approval, which every client was sent."""
    (text,) = {text for one in seen for text in one.asks["asked"] if text.startswith("Pay this")}
    return text


def page(seen: list[Seen], day: str) -> str:
    """Return the page."""
    texts = Texts()
    table = "\n".join(rows(seen, texts))
    shown = approval(seen)
    return PAGE.substitute(
        day=day,
        table=table,
        texts=texts.listed(),
        approval=shown,
        folded=" ".join(shown.split()),
    )


if __name__ == "__main__":
    print(page(asyncio.run(see(CLIENTS)), datetime.now(UTC).strftime("%Y-%m-%d")), end="")
