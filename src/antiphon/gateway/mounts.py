"""The mounts of one server: open while any of its transports runs. Most servers have none."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from antiphon.core.failures import log_failure
from antiphon.errors import ConfigError

_log = logging.getLogger("antiphon.gateway")


class Mounted(Protocol):
    """A server behind ours; `Mount` in `mount.py`, which needs the official SDK."""

    @property
    def name(self) -> str:
        """How logs call it."""
        ...

    @property
    def needs_console(self) -> bool:
        """Whether somebody has to approve some of its calls in the inbox."""
        ...

    async def start(self) -> None:
        """Connect, register what there is, and follow its changes."""
        ...

    async def stop(self) -> None:
        """Unregister everything, and end every connection."""
        ...


class Mounts:
    """The mounts of one server: open while any of its transports runs."""

    def __init__(self) -> None:
        """There are none yet."""
        self._mounts: list[Mounted] = []
        self._users = 0
        self._moving = asyncio.Lock()

    def add(self, mount: Mounted) -> None:
        """Mount a server when the first transport starts.

        Raises:
            ConfigError: One runs already.
        """
        if self._users:
            raise ConfigError("mount servers before this one starts")
        self._mounts.append(mount)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Keep every mount open meanwhile."""
        async with self._moving:
            if not self._users:
                await self._open_all()
            self._users += 1
        try:
            yield
        finally:
            async with self._moving:
                self._users -= 1
                if not self._users:
                    await self._close_all(self._mounts)

    async def _open_all(self) -> None:
        started: list[Mounted] = []
        try:
            for mount in self._mounts:
                started.append(mount)
                await mount.start()
        except BaseException:
            await self._close_all(started)
            raise

    async def _close_all(self, mounts: Sequence[Mounted]) -> None:
        for mount in reversed(mounts):
            try:
                await mount.stop()
            except Exception as error:  # noqa: BLE001 - the others are left all the same
                log_failure(_log, error, "%s could not be left in order", mount.name)
