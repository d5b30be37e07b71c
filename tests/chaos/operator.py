"""An operator who settles effects of unknown end with the command line, as people do."""

import asyncio
import json
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.judgement import Truth
from tests.child_processes import ROOT, environment

TRIES = 10
"""How often a command is given again: the database may be restarting."""
ENDED = "has no uncertain effect"
"""What the command says when the process that ran an effect has settled it after all."""
SHELLS = 2
COMMAND = 120.0
"""Seconds that one command may take on a busy machine."""


@dataclass(frozen=True)
class Case:
    """An effect of unknown end, as its client was told."""

    label: str
    call: str
    key: str
    command: str
    """What the client was told that an operator has to do."""


class Operator:
    """Looks whether an effect happened, and says so with one command."""

    def __init__(self, store: str, keys: str, folder: Path, *, wait: float) -> None:
        self._store = store
        self._wait = wait
        """Seconds after which whoever had begun an effect has ended it, or is dead."""
        self._environment = environment({"ANTIPHON_KEYS": keys})
        self._folder = folder
        self._turn = asyncio.Lock()
        self._shells: asyncio.Queue[asyncio.subprocess.Process] = asyncio.Queue()
        self._waiting: list[tuple[Case, asyncio.Future[str]]] = []
        self.unlisted: list[str] = []
        """Effects of unknown end that `antiphon calls --uncertain` did not show."""

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Have two shells while clients play."""
        shells = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.chaos.command_line",
                cwd=ROOT, env=self._environment, limit=1 << 24,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )
            for _ in range(SHELLS)
        ]  # fmt: skip
        try:
            for shell in shells:
                self._shells.put_nowait(shell)
            yield
        finally:
            for shell in shells:
                with suppress(ProcessLookupError):
                    shell.kill()
                await shell.wait()

    async def settle(self, case: Case) -> str:
        """Settle an effect; returns what the command said when it failed, else nothing."""
        await asyncio.sleep(self._wait)
        settled = asyncio.get_running_loop().create_future()
        self._waiting.append((case, settled))
        async with self._turn:
            if not settled.done():
                await self._see_to_all()
        return await settled

    async def _see_to_all(self) -> None:
        """List what waits, with one command, and settle everything of it, with one command each."""
        cases, self._waiting = self._waiting, []
        listed = await self._list()
        async with asyncio.TaskGroup() as group:
            for case, settled in cases:
                group.create_task(self._see_to(case, settled, listed=case.call in listed))

    async def _see_to(self, case: Case, settled: asyncio.Future[str], *, listed: bool) -> None:
        said = ""
        for _ in range(TRIES):
            nonce = Truth(self._folder).nonces.get((case.label, case.key.removeprefix("act ")))
            verdict = ["--not-done"] if nonce is None else ["--done", json.dumps(nonce)]
            command = [self._store if w == "STORE" else w for w in shlex.split(case.command)]
            code, said = await self._antiphon(*command[1:], *verdict)
            if code == 0:
                said = ""
                if not listed:
                    self.unlisted.append(f"{case.call}/{case.key}")
            if code == 0 or ENDED in said:
                break
            await asyncio.sleep(1)
        settled.set_result(said)

    async def _list(self) -> str:
        said = ""
        for _ in range(TRIES):
            code, said = await self._antiphon(
                "calls", self._store, "--uncertain", "--json", "--limit", "10000"
            )
            if code == 0:
                break
            await asyncio.sleep(1)
        return said

    async def _antiphon(self, *arguments: str) -> tuple[int, str]:
        """Give a command to one of the two shells."""
        shell = await self._shells.get()
        try:
            assert shell.stdin is not None
            assert shell.stdout is not None
            shell.stdin.write(json.dumps(arguments).encode() + b"\n")
            async with asyncio.timeout(COMMAND):
                line = await shell.stdout.readline()
        except TimeoutError:
            shell.kill()  # its place is not taken: such a run has failed
            return -1, f"no end in {COMMAND:.0f} s: antiphon {' '.join(arguments)}"
        self._shells.put_nowait(shell)
        code, said = json.loads(line)
        return code, said
