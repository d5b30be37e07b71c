"""An operator who settles effects of unknown end with the command line, as people do."""

import asyncio
import json
import sys
from pathlib import Path

from tests.chaos.judgement import Truth
from tests.child_processes import ROOT, environment

TRIES = 10
"""How often a command is given again: the database may be restarting."""


class Operator:
    """Looks whether an effect happened, and says so with one command."""

    def __init__(self, store: str, keys: str, folder: Path) -> None:
        self._store = store
        # What one command has compiled, the next need not compile again.
        self._environment = environment(
            {"ANTIPHON_KEYS": keys, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
        )
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._folder = folder
        self._hands = asyncio.Semaphore(2)
        self.unlisted: list[str] = []
        """Effects of unknown end that `antiphon calls --uncertain` did not show."""

    async def settle(self, label: str, call: str, key: str) -> str:
        """Settle an effect; returns what the command said when it failed, else nothing."""
        async with self._hands:
            if not await self._listed(call):
                self.unlisted.append(f"{call}/{key}")
            nonce = Truth(self._folder).nonces.get((label, key.removeprefix("act ")))
            verdict = ["--not-done"] if nonce is None else ["--done", json.dumps(nonce)]
            settle = ["calls", "settle", self._store, call, key, *verdict]
            said = ""
            for _ in range(TRIES):
                code, said = await self._antiphon(*settle)
                if code == 0:
                    return ""
                if "has no uncertain effect" in said:
                    break
                await asyncio.sleep(1)
            return said

    async def _listed(self, call: str) -> bool:
        for _ in range(TRIES):
            code, said = await self._antiphon("calls", self._store, "--uncertain", "--json")
            if code == 0:
                return call in said
            await asyncio.sleep(1)
        return False

    async def _antiphon(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "antiphon.cli.app", *arguments,
            cwd=ROOT, env=self._environment, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            said, _ = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        return process.returncode or 0, said.decode()
