"""`Limits`: how far a call, a round, a request and a process may go, each with its reason.

The first sentence under a limit says what it bounds, the rest says why it has this value;
`docs/limits.md` is written from them.
"""

from dataclasses import asdict, dataclass
from datetime import timedelta

from antiphon.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far one call, one round and one request may go."""

    rounds: int = 32
    """Rounds of one call that ask something. A dialogue that needs more should be a task."""

    pauses: int = 1000
    """Rounds of one call that ask nothing, as `ctx.pause` makes them. They are counted apart,
    because the parts of a long job are not questions."""

    call: timedelta = timedelta(days=1)
    """Time from the first round of a call to its last. People may answer the next day."""

    task: timedelta = timedelta(days=7)
    """Time from the creation of a task to its removal. A question in it may wait that long."""

    tasks_per_principal: int = 10_000
    """Unfinished tasks of one principal. Most of them wait for a person and cost one row each; the
    bound keeps one caller from filling the store."""

    task_bytes: int = 65_536
    """Bytes of the arguments of one task, and of the answers in one update of it. They are kept
    for as long as the task, and are written again with every step."""

    concurrent_task_runs: int = 16
    """Tasks that one process runs at a time. They share the event loop with the requests;
    `antiphon worker --concurrency` sets another number for a worker."""

    concurrent_task_runs_per_principal: int = 1_000
    """Tasks of one caller that one process runs at a time. More than a process has places for, so
    that a caller who is alone may use them all; where others wait, theirs go first anyway."""

    decision: timedelta = timedelta(hours=8)
    """Time that people have to decide a held call. A working day; `within=` says otherwise."""

    collect: timedelta = timedelta(days=1)
    """Time for which the result of a held call is kept for its caller. They may look the next
    day."""

    inbox_items_per_principal: int = 100
    """Open inbox items of one caller. A flood of questions makes people press yes."""

    state_bytes: int = 32_768
    """Bytes of the journal in a token. The token travels both ways in every round."""

    asks_per_round: int = 16
    """Questions in one round. Someone who has more to ask should ask with a form."""

    reasks: int = 3
    """How often a question is repeated because its answer did not fit. After that, a client is
    probably answering without a person."""

    body_bytes: int = 4 * 1024 * 1024
    """Bytes of one request body or one line on stdio. It is held in memory until it is read."""

    depth: int = 64
    """Levels of nesting in the JSON of a request. Real arguments need a fraction of it, and
    deep nesting is a cheap way to make a server work."""

    waiters: int = 4
    """Duplicates of a running round that wait for its result. A client that retries needs one;
    each of them holds a connection."""

    releases: int = 5
    """How often a failed round may be tried again with the same token. A failure that lasts longer
    is not one that retrying will mend."""

    legacy_rounds: int = 10
    """How often a handler that returns `InputRequired` is entered again for one legacy request. The
    request stays open all the time."""

    legacy_calls: int = 10_000
    """Requests of legacy clients that one process serves at a time. One that asks lives on while
    its client is gone, and takes about 40 KiB besides its arguments."""

    legacy_calls_per_principal: int = 1_000
    """The same for one authenticated principal. One caller must not use up the memory of all
    others."""

    legacy_ask: timedelta = timedelta(minutes=10)
    """Time that a legacy client has to answer an ask without a timeout of its own. The handler
    waits in memory until then."""

    sessions: int = 10_000
    """Legacy sessions in one process. An idle one takes about 40 KiB."""

    sessions_per_principal: int = 1_000
    """Legacy sessions of one authenticated principal. One caller must not use up the sessions of
    all others; those without authentication may have half of them together."""

    session_idle: timedelta = timedelta(minutes=30)
    """Time that a legacy session lives without a request. It is also the time in which a lost
    stream can be resumed."""

    parked: int = 10_000
    """Parked handlers in one process. Each is a live coroutine with its variables; the oldest gives
    way, and its call goes on by replay."""

    parked_per_principal: int = 1_000
    """Parked handlers of one principal. One caller must not push out those of all others."""

    listeners: int = 1_000
    """Open listen streams in one process. Each holds a connection."""

    listeners_per_principal: int = 100
    """Open listen streams of one principal. One caller must not use up the streams of all
    others."""

    held_bytes: int = 512 * 1024 * 1024
    """Bytes that one process keeps for callers between their requests: legacy sessions and calls,
    parked handlers, listen streams. Callers without authentication may use half of it together."""

    held_bytes_per_principal: int = 64 * 1024 * 1024
    """Bytes of the same for one authenticated principal. One caller must not use up the memory of
    all others."""

    page: int = 100
    """Entries in one page of a list. They carry whole schemas, so a longer page would be a very
    large response."""

    lease: timedelta = timedelta(seconds=30)
    """Time for which a claimed round or task stays claimed without a renewal. After a crash,
    another process waits that long before it takes over."""

    def __post_init__(self) -> None:
        """Refuse numbers that would switch a bound off, and spans that are only numbers."""
        given: dict[str, timedelta | float] = asdict(self)
        for name, value in given.items():
            default = self.__dataclass_fields__[name].default
            if isinstance(value, timedelta) != isinstance(default, timedelta):
                kind = "a timedelta" if isinstance(default, timedelta) else "a number"
                raise ConfigError(f"Limits({name}=...) takes {kind}, got {value!r}")
            size = value.total_seconds() if isinstance(value, timedelta) else value
            if not size > 0:
                raise ConfigError(f"Limits({name}=...) must be greater than zero, got {value!r}")
