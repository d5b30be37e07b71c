"""What is said when the store fails: to clients one sentence, to the log one line now and then."""

import logging
from collections.abc import Callable

from antiphon.errors import StoreError, StoreFull, Unavailable

log = logging.getLogger("antiphon")

EVERY = 10.0
"""Seconds between two lines about the same failure."""

_CAUSES = 64
"""Different failures that are remembered."""


class StoreTrouble:
    """Counts requests that were refused because the store failed, and logs it without a flood."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Take a clock for the rate of the log."""
        self._clock = clock
        self._causes: dict[str, tuple[float, int]] = {}
        """When each failure was last logged, and how many requests it has refused since."""

    def refused(self, error: StoreError) -> Unavailable:
        """Return what the client is told; the log is told the cause."""
        self._note(str(error))
        return Unavailable(sentence(error))

    def _note(self, cause: str) -> None:
        now = self._clock()
        logged, count = self._causes.get(cause, (float("-inf"), 0))
        count += 1
        if now - logged < EVERY:
            self._causes[cause] = (logged, count)
            return
        if len(self._causes) >= _CAUSES:
            self._causes.clear()
        self._causes[cause] = (now, 0)
        refused = "1 request" if count == 1 else f"{count} requests"
        log.error("%s (%s refused)", cause, refused)


def sentence(error: StoreError) -> str:
    """Say to a client what is wrong with the store, and whether trying again can help."""
    if isinstance(error, StoreFull):
        return "the server's store is full; try again later"
    if error.retryable:
        return "the server's store cannot be reached; try again"
    return "the server's store has failed and must be repaired by its operator"
