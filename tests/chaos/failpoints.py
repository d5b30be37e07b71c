"""Failpoints: places at which a server process kills or stops itself, so many times altogether.

Processes share the counts through a file, under a lock that a killed process lets go of.
"""

import fcntl
import os
import random
import signal
from collections import Counter
from pathlib import Path

POINTS = tuple(
    f"{when} {what}"
    for what in ("claim", "effect", "settle", "record", "reply")
    for when in ("before", "after")
)
HELD_POINTS = (
    *(
        f"{when} {what}"
        for what in ("hold", "decide", "effect", "settle", "finish", "reply")
        for when in ("before", "after")
    ),
    "after run",
    "before collect",
)
"""Those of a server whose calls wait for somebody else."""


class Book:
    """A file that every process appends whole lines to, whatever happens to it afterwards."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class Points:
    """The failpoints of one process."""

    def __init__(self, folder: Path, chance: float, points: tuple[str, ...] = POINTS) -> None:
        self._points = points
        self._left = os.open(folder / "left", os.O_RDWR)
        self._kills = Book(folder / "kills")
        self._pauses = Book(folder / "pauses")
        self._chance = chance
        self._dice = random.SystemRandom()

    @staticmethod
    def arm(folder: Path, kills: int, pauses: int, points: tuple[str, ...] = POINTS) -> None:
        """Set every point to kill so many times, and all together to stop their process."""
        (folder / "left").write_bytes(bytes([kills] * len(points) + [pauses]))
        (folder / "kills").touch()
        (folder / "pauses").touch()

    @staticmethod
    def armed(folder: Path) -> int:
        """How many kills and pauses are still to come."""
        return sum((folder / "left").read_bytes())

    @staticmethod
    def hits(folder: Path) -> Counter[str]:
        """How often each point was hit."""
        lines = (folder / "kills").read_text().splitlines()
        return Counter(line.partition(" ")[2] for line in lines)

    @staticmethod
    def killed(folder: Path) -> dict[int, str]:
        """The processes that were killed, and where."""
        lines = (folder / "kills").read_text().splitlines()
        return {int(pid): point for pid, _, point in (line.partition(" ") for line in lines)}

    @staticmethod
    def paused(folder: Path) -> list[int]:
        """The processes that were stopped for a while, in order."""
        return [int(pid) for pid in (folder / "pauses").read_text().split()]

    def come_to(self, point: str) -> None:
        """Perhaps end here, or stop until the parent lets us go on."""
        if self._dice.random() < self._chance and self._take(self._points.index(point)):
            self._kills.write(os.getpid(), point)
            os.kill(os.getpid(), signal.SIGKILL)
        if self._dice.random() < self._chance and self._take(len(self._points)):
            self._pauses.write(os.getpid())
            os.kill(os.getpid(), signal.SIGSTOP)

    def _take(self, place: int) -> bool:
        fcntl.flock(self._left, fcntl.LOCK_EX)
        try:
            left = os.pread(self._left, 1, place)[0]
            if left:
                os.pwrite(self._left, bytes([left - 1]), place)
            return left > 0
        finally:
            fcntl.flock(self._left, fcntl.LOCK_UN)
