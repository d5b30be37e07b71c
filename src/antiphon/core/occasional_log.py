"""A log line that is due with every refused request is written now and then, with their number."""

import logging
from collections.abc import Callable

EVERY = 10.0
"""Seconds between two lines of the same cause."""

_CAUSES = 64
"""Different causes that are remembered."""


class OccasionalLog:
    """Writes one line for many requests that were refused for the same cause."""

    __slots__ = ("_clock", "_log", "_seen")

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        """Write to a logger, at a rate that the clock bounds."""
        self._log = log
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}
        """When each cause was last written, and how many requests it has refused since."""

    def warning(self, cause: str) -> None:
        """Note a refused request; write a warning if none of this cause was written lately."""
        self._note(logging.WARNING, cause)

    def error(self, cause: str) -> None:
        """Note a refused request; write an error if none of this cause was written lately."""
        self._note(logging.ERROR, cause)

    def _note(self, level: int, cause: str) -> None:
        now = self._clock()
        written, count = self._seen.get(cause, (float("-inf"), 0))
        count += 1
        if now - written < EVERY:
            self._seen[cause] = (written, count)
            return
        if len(self._seen) >= _CAUSES:
            self._seen.clear()
        self._seen[cause] = (now, 0)
        refused = "1 request" if count == 1 else f"{count} requests"
        self._log.log(level, "%s (%s refused)", cause, refused)
