"""What is counted of calls. Read when metrics are collected, so that counting is one addition."""

from collections import Counter
from collections.abc import Iterator, Mapping

from opentelemetry.metrics import CallbackOptions, Observation

from antiphon.ports import Clock

_MINUTE = 60.0


class CountedEvents:
    """How often each kind of event has happened."""

    def __init__(self, *names: str) -> None:
        """Tell events apart by these attributes."""
        self._names = names
        self.counts: Counter[tuple[str, ...]] = Counter()

    def observe(self, _: CallbackOptions) -> Iterator[Observation]:
        """Return the counts, for whoever collects metrics."""
        for values, count in tuple(self.counts.items()):
            attributes: Mapping[str, str] = dict(zip(self._names, values, strict=True))
            yield Observation(count, attributes)


class Levels:
    """How many there are of something now, by state."""

    def __init__(self, name: str) -> None:
        """Tell states apart by this attribute; nothing is known yet."""
        self._name = name
        self._known: Mapping[str, int] = {}

    def set(self, known: Mapping[str, int]) -> None:
        """Take what there is; a state that is no longer named has none."""
        self._known = {**dict.fromkeys(self._known, 0), **known}

    def observe(self, _: CallbackOptions) -> Iterator[Observation]:
        """Return the levels, for whoever collects metrics."""
        for state, number in self._known.items():
            yield Observation(number, {self._name: state})


class OpenRounds:
    """Tokens that were given out: how many wait for their round, and how many were abandoned.

    A token says when it expires, and the process that redeems it need not be the one that made it.
    So each process keeps, by the minute of expiry, how many it gave out less how many it redeemed:
    one process may come below zero, and the sum over all of them is right.
    """

    def __init__(self, clock: Clock) -> None:
        """Nothing waits yet."""
        self._clock = clock
        self._due: Counter[int] = Counter()
        self._abandoned = 0

    def wait(self, expires: float) -> None:
        """Count a token that was given out."""
        self._due[int(expires // _MINUTE)] += 1

    def end(self, expires: float) -> None:
        """Count a token that was redeemed, also one that was redeemed late."""
        self._due[int(expires // _MINUTE)] -= 1

    def waiting(self, _: CallbackOptions) -> Iterator[Observation]:
        """Return how many wait."""
        self._close()
        yield Observation(sum(self._due.values()))

    def abandoned(self, _: CallbackOptions) -> Iterator[Observation]:
        """Return how many expired before anybody came with them."""
        self._close()
        yield Observation(self._abandoned)

    def _close(self) -> None:
        """Move the minutes that are over to what was abandoned."""
        now = int(self._clock() // _MINUTE)
        for minute in [minute for minute in tuple(self._due) if minute < now]:
            self._abandoned += self._due.pop(minute)
