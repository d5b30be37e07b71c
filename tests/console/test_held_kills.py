"""A held refund whose server, worker or console is killed at every boundary of its work.

Every step is done by a new process. Each test counts the boundaries of its steps in a run without
trouble, and then plays the call once for each boundary, killing the process that comes to it.
Whoever lost an answer asks again. In the end the refund has happened once, and after a decision.
"""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from antiphon.testing import KEY
from tests.child_processes import ROOT, environment

TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
CLIENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("modern", {}),
    "forms": ("modern", {"elicitation": {"form": {}}}),
    "urls": ("modern", {"elicitation": {"url": {}}}),
    "tasks": ("modern", TASKS),
    "legacy": ("legacy", {}),
    "legacy with elicitation": ("legacy", {"elicitation": {}}),
    "own page": ("modern", {"elicitation": {"url": {}}}),
}
"""What they can; on its own page a caller decides who is sent there by a link."""

ARGUMENTS = {"order": "4711", "cents": 1200, "reason": "broken"}


class Parent:
    """Starts processes, one after another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.console.killed_processes"],
            cwd=ROOT, env=environment(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, action: str, folder: Path, last: int, options: Any) -> tuple[int, int, Any]:
        """Let a process do something; returns its exit code, its boundaries, what it was told."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(
            json.dumps([action, str(folder), last, options]), file=self._process.stdin, flush=True
        )
        code, seen, told = json.loads(self._process.stdout.readline())
        return code, seen, told

    def close(self) -> None:
        assert self._process.stdin is not None
        with self._process:  # which closes the pipes and waits
            self._process.stdin.close()


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    made = Parent()
    yield made
    made.close()


class Play:
    """One call from its first request to its result, with one process killed on the way."""

    steps = ("first", "decide", "work", "fetch")

    def __init__(self, parent: Parent, folder: Path, client: str) -> None:
        self._parent = parent
        self.folder = folder
        self._era, self._can = CLIENTS[client]
        self._own = client == "own page"
        self._person = "carl" if self._own else "anna"
        self._token: str | None = None
        self.told: Any = None
        self.kills = 0
        (folder / "paid").touch()
        if (folder / "token").exists():
            self._token = json.loads((folder / "token").read_text())

    def step(self, name: str, last: int = 0) -> int:
        """Do a step; one whose process was killed is done again. Returns its boundaries."""
        action, options = self._action(name)
        code, seen, told = self._parent.run(action, self.folder, last, options)
        if code == -9:
            self.kills += 1
            action, options = self._action(name)
            code, _, told = self._parent.run(action, self.folder, 0, options)
        assert code == 0, f"{name} has failed after boundary {last}"
        if told is not None and told.get("operator"):
            self._settle()
            code, _, told = self._parent.run(action, self.folder, 0, {**options, "settled": True})
            assert code == 0
        self.told = told
        if name == "first" and told is not None:
            self._token = told["result"].get("requestState")
            (self.folder / "token").write_text(json.dumps(self._token))
        return seen

    def _action(self, name: str) -> tuple[str, Any]:
        if name == "decide":
            return "decide", {"choice": "approve", "person": self._person}
        if name == "work":
            tasks = self.rows("id", "antiphon_tasks")
            return "work", {"folder": str(self.folder), "tasks": tasks, "settled": False}
        params: dict[str, Any] = {"name": "refund", "arguments": ARGUMENTS}
        if self._own:
            params = {"name": "own_refund", "arguments": {"order": "4711"}}
        method = "tools/call"
        if name == "fetch" and self._token is not None:
            visited = {"approve": {"action": "accept"}}
            params |= {"requestState": self._token, "inputResponses": visited}
        if name == "fetch" and self._can is TASKS:
            (task,) = self.rows("id", "antiphon_tasks")
            method, params = "tasks/get", {"taskId": task}
        return "serve", {"era": self._era, "method": method, "can": self._can, "params": params}

    def _settle(self) -> None:
        """An operator looks whether the refund has happened, and says so."""
        store = f"sqlite:///{self.folder / 'shop.db'}"
        said = ["--done", '"R-4711"'] if self.paid else ["--not-done"]
        command = [sys.executable, "-m", "antiphon.cli.app", "calls", "settle", store, "--all"]
        process = subprocess.run(
            [*command, "--yes", *said],
            cwd=ROOT, env=environment({"ANTIPHON_KEYS": KEY}), check=False, capture_output=True,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr

    def rows(self, column: str, table: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as database, database:
            return [row[0] for row in database.execute(f"SELECT {column} FROM {table}")]

    @property
    def paid(self) -> list[str]:
        return (self.folder / "paid").read_text().splitlines()

    @property
    def once(self) -> list[str]:
        """What was paid in the end."""
        return ["4711 1 carl"] if self._own else ["4711 1200 anna"]

    @property
    def refunded(self) -> bool:
        """Whether the client has heard of the refund."""
        return self.result.startswith("Refunded, receipt R-4711")

    @property
    def result(self) -> str:
        """What the client has heard in the end."""
        result = self.told["result"]
        return (result.get("result") or result)["content"][0]["text"]


def save(folder: Path, name: str) -> None:
    shutil.copytree(folder / "call", folder / name)


def restore(folder: Path, name: str) -> None:
    shutil.rmtree(folder / "call")
    shutil.copytree(folder / name, folder / "call")


def play_with_kills(parent: Parent, folder: Path, client: str, steps: tuple[str, ...]) -> int:
    """Play a call once for each boundary of these steps; returns how many processes were killed."""
    call = folder / "call"
    call.mkdir()
    boundaries: dict[str, int] = {}
    play = Play(parent, call, client)
    for name in Play.steps:
        save(folder, f"before {name}")
        boundaries[name] = play.step(name)
    assert play.refunded
    assert play.paid == play.once
    kills = 0
    for killed in steps:
        for last in range(1, boundaries[killed] + 1):
            restore(folder, f"before {killed}")
            play = Play(parent, call, client)
            for name in Play.steps[Play.steps.index(killed) :]:
                play.step(name, last if name == killed else 0)
            check(play, killed, last)
            kills += play.kills
    return kills


def check(play: Play, killed: str, last: int) -> None:
    where = f"{killed} was killed at boundary {last}"
    assert play.paid == play.once, where
    assert play.rows("decision", "antiphon_decisions") == ["approve"], where
    if killed == "fetch" and "Not done yet" in play.result:
        # The only copy of the result was on its way: the same call is a new one, which waits.
        assert play.rows("status", "antiphon_inbox") == ["approved", "open"], where
    else:
        assert play.refunded, where


@pytest.mark.timeout(300)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_killed_at_any_boundary_neither_loses_nor_repeats_the_refund(
    parent: Parent, tmp_path: Path, client: str
) -> None:
    assert play_with_kills(parent, tmp_path, client, ("first", "fetch")) >= 8


@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", ["decide", "work"])
def test_a_console_or_a_worker_killed_at_any_boundary_neither_loses_nor_repeats_the_refund(
    parent: Parent, tmp_path: Path, step: str
) -> None:
    assert play_with_kills(parent, tmp_path, "nothing", (step,)) >= 8
