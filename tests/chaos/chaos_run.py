"""One night of chaos: the stage is set, the clients play, and the promises are held."""

import asyncio
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from antiphon.stores import open_store
from tests.chaos.clients import Operator, Told, Truth, check, figures, play
from tests.chaos.deployment import stage
from tests.servers import opened


@dataclass(frozen=True)
class Night:
    """How bad it will be."""

    clients: int
    """Calls at the same time."""

    kills: int
    """How often each failpoint is hit."""

    chance: float
    """That a failpoint is hit when a process comes to it."""

    lease: float
    """Seconds after which what a dead process held may be taken over."""

    def run(self, name: str, store: str, folder: Path) -> None:
        """Play on a store; print the figures, then check them."""
        begun = time.monotonic()
        keys = secrets.token_hex(32)
        with stage(
            folder, store, keys, kills=self.kills, chance=self.chance, lease=self.lease
        ) as port:
            told = asyncio.run(self._play(port, store, keys, folder))
        truth = Truth(folder)
        print(f"--- {name}")
        print("\n".join(figures(told, truth, time.monotonic() - begun)), flush=True)
        check(told, truth, kills=self.kills)

    async def _play(self, port: int, store: str, keys: str, folder: Path) -> Told:
        async with opened(open_store(store)) as shared:
            operator = Operator(shared, keys, folder)
            return await play(port, operator, folder, clients=self.clients)
