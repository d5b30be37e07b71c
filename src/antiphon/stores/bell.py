"""Waking those who wait for legs. Owns who waits in this process; knows no database."""

import asyncio


class Bell:
    """Rung when a leg may have become ready. Nobody who listens misses a ring."""

    def __init__(self) -> None:
        self.rings = 0
        """How often it was rung: look before you look for legs."""

        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake all who wait."""
        self.rings += 1
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def rung_since(self, rings: int, timeout: float) -> bool:
        """Wait until it is rung after it had been rung so often; False after `timeout` seconds."""
        if self.rings != rings or timeout <= 0:
            return self.rings != rings
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait({future}, timeout=timeout)
        finally:
            self._waiting.discard(future)
        return self.rings != rings
