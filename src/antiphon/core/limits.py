"""Named budgets, each with the reason for its number. Decides nothing by itself."""

from dataclasses import dataclass
from datetime import timedelta

from antiphon.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far one call, one round and one request may go."""

    rounds: int = 32
    """Rounds of one call that ask something. A longer dialogue is a task."""

    pauses: int = 1000
    """State-only rounds of one call; counted apart: legs of a long job are not questions."""

    call: timedelta = timedelta(days=1)
    """From the first round to the last; people take long."""

    task: timedelta = timedelta(days=7)
    """From a task's creation to its removal; a question in it may wait that long."""

    tasks_per_principal: int = 10_000
    """Unfinished tasks of one principal, most of which wait for a person."""

    legs: int = 16
    """Legs of tasks that one process runs at a time; a worker may be told another number."""

    state_bytes: int = 32_768
    """Journal in a token. It travels both ways on every round."""

    asks_per_round: int = 16
    """Questions in one round; more is a form."""

    reasks: int = 3
    """How often an ask is repeated because its answer did not fit."""

    body_bytes: int = 4 * 1024 * 1024
    """One request body or stdio line."""

    depth: int = 64
    """Nesting of JSON in a request or a schema."""

    waiters: int = 4
    """Duplicates of one running round that may wait for it."""

    releases: int = 5
    """How often a failed round may be tried again with the same token."""

    legacy_rounds: int = 10
    """Re-entries of one native handler for a legacy client."""

    legacy_ask: timedelta = timedelta(minutes=10)
    """How long a legacy client may take to answer an ask that says no time of its own."""

    sessions: int = 10_000
    """Legacy sessions in one process; an idle one takes some 40 KiB."""

    sessions_per_principal: int = 1_000
    """Legacy sessions of one authenticated principal."""

    session_idle: timedelta = timedelta(minutes=30)
    """How long a legacy session lives without a request; also how long a lost stream can be
    resumed."""

    parked: int = 10_000
    """Parked frames in one process."""

    parked_per_principal: int = 1_000
    """Parked frames of one principal, so that nobody can push all others out."""

    listeners: int = 1_000
    """Open listen streams in one process."""

    listeners_per_principal: int = 100
    """Open listen streams of one principal, so that nobody can take them all."""

    page: int = 100
    """Entries of one page of a list."""

    lease: timedelta = timedelta(seconds=30)
    """How long a claimed round stays claimed without a renewal."""

    def __post_init__(self) -> None:
        """Refuse numbers that would switch a bound off."""
        for name in self.__slots__:
            value: timedelta | float = getattr(self, name)
            size = value.total_seconds() if isinstance(value, timedelta) else value
            if not size > 0:
                raise ConfigError(f"Limits({name}=...) must be greater than zero, got {value!r}")
