"""Time, dice, tallies and failing stores for tests. Each is real enough to be trusted in production
code paths; none knows a handler.
"""

import inspect
import os
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

from antiphon.ports import Store
from antiphon.protocol.request import Channel, LegacyAsk


class FakeClock:
    """A clock that stands until it is told to go on."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        """Stand at seconds since the epoch."""
        self.now: float = now

    def __call__(self) -> float:
        """Tell the time."""
        return self.now

    def advance(self, span: float | timedelta) -> None:
        """Let time pass."""
        self.now += span.total_seconds() if isinstance(span, timedelta) else span


class CountingEntropy:
    """Random bytes that never repeat and are the same in every run."""

    def __init__(self) -> None:
        """Begin at the first draw."""
        self.draws: int = 0

    def __call__(self, size: int) -> bytes:
        """Draw bytes."""
        self.draws += 1
        data = b""
        while len(data) < size:
            block = f"{self.draws} {len(data)}".encode()
            data += blake2b(block, digest_size=32).digest()
        return data[:size]


class Tally:
    """Counts in a file what happened, so that counts outlive servers and processes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Count in this file; it is made by the first mark."""
        self.path: Path = Path(path)

    def mark(self, what: str) -> int:
        """Write down that something happened; tell how often by now."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")
            file.flush()
        return self[what]

    @property
    def marks(self) -> list[str]:
        """Everything that happened, in order."""
        if not self.path.exists():
            return []
        return self.path.read_text(encoding="utf-8").splitlines()

    def __getitem__(self, what: str) -> int:
        """Tell how often something happened."""
        return self.counts[what]

    @property
    def counts(self) -> Counter[str]:
        """How often each thing happened."""
        return Counter(self.marks)


class RecordingChannel(Channel):
    """A request's channel that keeps the notifications sent on it."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.notices: list[tuple[str, dict[str, Any]]] = []

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Keep a notification."""
        self.notices.append((method, dict(params)))


class BackChannel(RecordingChannel):
    """The channel of a legacy session in memory: a function answers while the handler waits."""

    can_ask = True

    def __init__(self, answer: Callable[[str, LegacyAsk], Any]) -> None:
        """Take a function from key and `LegacyAsk` to the raw answer."""
        super().__init__()
        self._answer = answer
        self.batches: list[list[str]] = []

    async def ask(self, requests: Mapping[str, LegacyAsk]) -> Mapping[str, Any]:
        """Answer every ask of one batch."""
        self.batches.append(list(requests))
        return {key: self._answer(key, request) for key, request in requests.items()}


# --- crashes -----------------------------------------------------------------------------------


class Crash(BaseException):
    """The process is gone. Not an `Exception`: nothing may handle it."""


class Process:
    """One life of a process: until it crashes. Afterwards nothing it does reaches the world."""

    def __init__(self, crash_at: int | None = None) -> None:
        """Live for ever, or crash at that point; every store call has two, before and after."""
        self.alive: bool = True
        self.points: int = 0
        self._crash_at = crash_at

    def crash_in(self, points: int) -> None:
        """Crash so many points from here."""
        self._crash_at = self.points + points

    def point(self) -> None:
        """Come past a point at which the process may crash.

        Raises:
            Crash: It has crashed, here or earlier.
        """
        self.points += 1
        if self.points == self._crash_at:
            self.alive = False
        if not self.alive:
            raise Crash


class MortalStore:
    """A store as one process sees it: out of reach from the moment that the process crashed."""

    def __init__(self, store: Store, process: Process) -> None:
        """Reach the store through a process."""
        self._store = store
        self._process = process
        self.durable: bool = store.durable
        self.shared: bool = store.shared

    def for_server(self, server: str) -> "MortalStore":
        """Return the view of a server, as this process sees it."""
        return MortalStore(self._store.for_server(server), self._process)

    def __getattr__(self, name: str) -> Any:
        """Return an operation of the store with a crash point on either side."""
        operation = getattr(self._store, name)
        if not inspect.iscoroutinefunction(operation):
            return operation

        async def guarded(*args: Any, **kwargs: Any) -> Any:
            self._process.point()
            result = await operation(*args, **kwargs)
            self._process.point()
            return result

        return guarded
