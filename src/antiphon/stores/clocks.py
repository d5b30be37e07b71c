"""Comparing the clock of this process with that of its store. Does no I/O.

Tokens expire by the clock of the process that reads them, rows by the clock of the store. Where the
two differ by more than the grace for which expired rows are kept, a token could outlive the row
that says that it was redeemed.
"""

import logging

from antiphon.errors import ConfigError, StoreError

log: logging.Logger = logging.getLogger("antiphon")

WARN = 5.0
"""Seconds of difference that are logged."""

REFUSE = 60.0
"""Seconds of difference at which nothing is served. Far below the grace of any shared store."""

EVERY = 60.0
"""Seconds between two comparisons."""


class ClockCheck:
    """What is known of the difference between two clocks."""

    def __init__(self, store: str) -> None:
        """Name the store for texts: `the PostgreSQL store`."""
        self._store = store
        self.difference: float = 0.0
        """Seconds by which this process is ahead; negative when it is behind."""

    def compare(self, before: float, there: float, after: float) -> None:
        """Note the time of the store, asked between two readings of the own clock.

        What the journey may have taken is no difference.
        """
        if there < before:
            self.difference = before - there
        elif there > after:
            self.difference = after - there
        else:
            self.difference = 0.0
        if abs(self.difference) >= WARN:
            log.warning("%s. %s", self._text(), _CURE)

    def check_start(self) -> None:
        """Refuse to start with clocks that differ too much.

        Raises:
            ConfigError: They do.
        """
        if abs(self.difference) >= REFUSE:
            raise ConfigError(f"{self._text()}. {_CURE}")

    def check(self) -> None:
        """Refuse to go on with clocks that differ too much.

        Raises:
            StoreError: They do.
        """
        if abs(self.difference) >= REFUSE:
            raise StoreError(f"{self._text()}. {_CURE}", retryable=False)

    def _text(self) -> str:
        side = "ahead of" if self.difference > 0 else "behind"
        seconds = abs(self.difference)
        return f"the clock of this process is {seconds:.0f} s {side} that of {self._store}"


_CURE = "Set the clocks of both machines, for instance with NTP"
