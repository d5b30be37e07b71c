"""A call as one round finds it: who it is, what it knows, which asks are out.

Owns how answers enter the journal (S4-6, S4-7). Knows no handler, no store and no transport.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import msgspec

from antiphon.core.digest import canonical, short_digest
from antiphon.core.journal import Entry, Handle, Journal, Pending
from antiphon.core.text import safe
from antiphon.engine.questions import EXPIRED, check_shape, reasons, unanswered
from antiphon.errors import AnswerInvalid, InvalidRequest
from antiphon.forms.schema import FlatSchema
from antiphon.ports import Entropy

_ID = 16
_SEED = 16


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """An answer that did not fit: how often by now, and why."""

    tries: int
    reason: str


class Call:
    """One call in one of its rounds."""

    __slots__ = (
        "_entropy",
        "_id",
        "_seed",
        "deadline",
        "entries",
        "handle",
        "journal",
        "number",
        "pending",
        "rejected",
        "timed",
        "trace",
        "unasked",
    )

    def __init__(
        self,
        *,
        number: int,
        deadline: float,
        journal: Journal,
        entropy: Entropy,
        id: str = "",
        pending: tuple[Pending, ...] = (),
        trace: str = "",
        handle: Handle | None = None,
    ) -> None:
        """A call without an id is born in this round; its id is drawn when somebody needs it."""
        self._entropy = entropy
        self._id = id
        self._seed = journal.seed
        self.number = number
        self.deadline = deadline
        self.journal = journal
        self.entries = journal.entries
        self.pending = {p.key: p for p in pending} if pending else _NONE
        self.trace = trace
        self.handle = handle
        """Where the journal is, while it has not been fetched from the store."""

        self.rejected: dict[str, Rejected] = {}
        self.timed: list[Entry] = []
        """Answers of this round that came in time or not: what another try must see again."""

        self.unasked: dict[str, dict[str, Any]] = {}

    @property
    def id(self) -> str:
        """128 random bits, the same in every round (S2-1)."""
        if not self._id:
            self._draw()
        return self._id

    @property
    def seed(self) -> bytes:
        """What `ctx.uuid` and `ctx.random` are derived from."""
        if not self._seed:
            self._draw()
        return self._seed

    def _draw(self) -> None:
        """Draw both at once: a call that needs one of them nearly always needs the other."""
        drawn = self._entropy(_ID + _SEED)
        self._id = self._id or drawn[:_ID].hex()
        self._seed = self._seed or drawn[_ID:]

    def next(self, journal: Journal, pending: tuple[Pending, ...]) -> "Call":
        """Give the same call in its next round, where no token carries it."""
        return Call(
            id=self.id,
            number=self.number + 1,
            deadline=self.deadline,
            journal=journal,
            entropy=self._entropy,
            pending=pending,
            trace=self.trace,
        )

    def take_journal(self, journal: Journal) -> None:
        """Take the journal that was fetched from the store, below what this round has brought."""
        self.handle = None
        self.journal = journal
        self._seed = journal.seed
        self.entries = [*journal.entries, *self.entries]

    def restart(self, journal: Journal) -> None:
        """Begin the call again with another version of its handler: what came is not for it."""
        self.journal = journal
        self.entries = journal.entries
        self.pending = _NONE
        self.rejected = {}

    def accept_pushed(self, answers: Mapping[str, Any], now: float) -> None:
        """Take in answers of a back channel, over which an ask may also end without one."""
        ended = {key: raw for key, raw in answers.items() if unanswered(raw)}
        self.accept({key: raw for key, raw in answers.items() if key not in ended}, now)
        for key, raw in ended.items():
            pending = self.pending[key]
            self.entries.append(Entry("ask", key, raw, pending.digest, pending.note))

    def accept(self, answers: object, now: float) -> bytes:
        """Take in the answers to pending asks and give the digest that the claim keeps (S3-2).

        Raises:
            InvalidRequest: Not a map, or an answer of the wrong shape; nothing is spent.
        """
        given = check_map(answers)
        accepted: dict[str, Any] = {}
        entries = list(self.entries)
        for key, pending in self.pending.items():
            late = bool(pending.expires) and not now < pending.expires
            if key not in given and not late:
                continue
            raw: Mapping[str, Any] = EXPIRED
            if key in given:
                raw = accepted[key] = check_shape(pending.kind, key, given[key])
            if late:
                raw = EXPIRED
            elif pending.schema and not self._fits(pending, raw):
                continue
            entry = Entry("ask", key, raw, pending.digest, pending.note, secret=pending.secret)
            entries.append(entry)
            if pending.expires:
                self.timed.append(entry)
        self.entries = entries
        # With the seed, which only tokens carry: who reads the ledger cannot try out answers.
        return short_digest(self.seed, canonical(accepted)) if accepted else b""

    def _fits(self, pending: Pending, raw: Mapping[str, Any]) -> bool:
        """Check content against the schema it was asked with, where no re-run will (ELICIT-24)."""
        if raw.get("action") != "accept":
            return True
        try:
            _compiled(pending.schema).read(raw["content"])
        except AnswerInvalid as error:
            self.rejected[pending.key] = Rejected(pending.tries + 1, reasons(error))
            return False
        return True

    def take_unasked(self, answers: object) -> None:
        """Keep the answers of a first request for a tool that opted in (S4-7)."""
        for key, raw in check_map(answers).items():
            if not isinstance(raw, dict):
                raise InvalidRequest(f"the answer to {safe(key, 128)!r} must be an object")
            self.unasked[key] = cast("dict[str, Any]", raw)


_NONE: Mapping[str, Pending] = {}


def check_map(answers: object) -> dict[str, Any]:
    """Give the answers as a map; absent ones are an empty map."""
    if answers is None:
        return {}
    if not isinstance(answers, dict):
        raise InvalidRequest("inputResponses must be an object")
    return cast("dict[str, Any]", answers)


@lru_cache(maxsize=512)
def _compiled(schema: bytes) -> FlatSchema:
    return FlatSchema.tolerant(msgspec.json.decode(schema))
