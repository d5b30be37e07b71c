"""`Audit`: what a server writes down of its calls, as one frozen value."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from antiphon.errors import ConfigError


class LineStream(Protocol):
    """A text stream, such as `sys.stderr`."""

    def write(self, text: str, /) -> object:
        """Write a text."""
        ...

    def flush(self) -> object:
        """Pass on what was written."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Keep a record of every call, round, task run, effect, decision and refusal."""

    store: bool = True
    """Keep the records in the server's store: memory, SQLite or PostgreSQL."""

    lines: str | Path | LineStream | None = None
    """Write the records as JSON lines, too or instead: to a file, whose processes continue one
    chain, or to a stream, where each process has a chain of its own."""

    texts: bool = False
    """Whether arguments and the messages of questions are kept, and not only their digests."""

    answers: bool = False
    """Whether answers are kept, and not only that there were some."""

    keep: timedelta = timedelta(days=400)
    """How long records are kept in the store. A little more than a year."""

    most: int = 10_000_000
    """Records in the store of one server; beyond it the oldest are removed."""

    required: bool = True
    """Whether a round is refused whose record cannot be written. Without it there may be gaps; the
    next record says how many."""

    def __post_init__(self) -> None:
        """Refuse at start what would fail later.

        Raises:
            ConfigError: Names the setting and the cure.
        """
        if not self.store and self.lines is None:
            raise ConfigError("Audit(...) needs store=True, or lines= with a file or a stream")
        if not self.keep > timedelta(0):
            raise ConfigError("Audit(keep=...) must be a timedelta greater than zero")
        if not self.most > 1:
            raise ConfigError("Audit(most=...) must be at least two records")
