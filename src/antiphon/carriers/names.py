"""Looking up names of servers, each by one thread at a time that keeps no process.

A lookup cannot be cut short. Whoever tries to connect again and again while names are not answered
holds one more thread of the event loop with each try, until there are none for anybody else.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterable
from urllib.parse import urlsplit


class Names:
    """The names in some URLs."""

    def __init__(self, urls: Iterable[str]) -> None:
        """Take the URLs."""
        self._hosts = {urlsplit(url).hostname or "" for url in urls}
        self._asked: dict[str, asyncio.Future[None]] = {}

    async def answered(self) -> None:
        """Look up the names; return when one is answered, whatever is said of it."""
        loop = asyncio.get_running_loop()
        for host in self._hosts:
            before = self._asked.get(host)
            if before is None or before.done() or before.get_loop() is not loop:
                self._asked[host] = answer = loop.create_future()
                threading.Thread(target=_look_up, args=(host, answer), daemon=True).start()
        await asyncio.wait(self._asked.values(), return_when=asyncio.FIRST_COMPLETED)


def _look_up(host: str, answer: "asyncio.Future[None]") -> None:
    with contextlib.suppress(OSError, UnicodeError):
        socket.getaddrinfo(host, None)
    with contextlib.suppress(RuntimeError):  # the event loop is closed
        answer.get_loop().call_soon_threadsafe(answer.set_result, None)
