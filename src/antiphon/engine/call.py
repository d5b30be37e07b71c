"""A call at the beginning of a round: its id, what it knows, which asks were put in the last round.

Owns how answers enter the journal, and what becomes of a running call when the declared version of
its handler has changed.
"""

import contextlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, cast

import msgspec

from antiphon.engine.handler import Handler
from antiphon.engine.questions import APPROVE, EXPIRED, check_shape, reasons, unanswered
from antiphon.errors import AnswerInvalid, Diverged, InvalidRequest, StoreError, ToolError
from antiphon.forms.schema import FlatSchema
from antiphon.ports import ROUNDS_PER_START, Entropy, Store
from antiphon.protocol.digest import canonical, short_digest
from antiphon.protocol.journal import Entry, Journal, encode_value
from antiphon.protocol.text import safe
from antiphon.seal.claims import APPROVAL, Handle, Pending

_ID = 16
_SEED = 16


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """An answer that did not fit: how often by now, and why."""

    tries: int
    reason: str

    def check(self, key: str, limit: int) -> None:
        """End a call whose client has given too many answers that do not fit.

        Raises:
            ToolError: These are too many.
        """
        if self.tries > limit:
            tries = "1 more try" if limit == 1 else f"{limit} more tries"
            why = f": {self.reason}" if self.reason else "."
            raise ToolError(f"The answer to {key!r} did not fit after {tries}{why}")


class Call(msgspec.Struct, eq=False):
    """One call in one of its rounds."""

    number: int
    """Of this round in tokens and the ledger; unlike `round` it also counts the starts."""

    deadline: float
    journal: Journal
    _entropy: Entropy
    entries: list[Entry]
    """What the execution reads: the entries of the journal, and the answers of this round."""

    _seed: bytes
    _id: str = ""
    trace: str = ""
    incarnation: str = ""
    """Of the store when the call ended its last round; empty in a first round."""

    pending: dict[str, Pending] = {}
    """The asks that the round before put, by key."""

    handle: Handle | None = None
    """Where the journal is, while it has not been fetched from the store."""

    began_effect: bool = False
    """Whether an effect of this call was claimed by this process."""

    shares: frozenset[str] = frozenset()
    """Equal calls whose effects count for this one, and whose caller learns of them here."""

    rejected: Mapping[str, Rejected] = _NOTHING
    """Answers that did not fit, by key: their asks are put again with the reason."""

    timed: Sequence[Entry] = ()
    """Answers to asks with a timeout, and what an earlier try of this round had learned. They are
    stored before an effect: by the clock of another try an answer might be late."""

    unasked: Mapping[str, bytes] = _NOTHING
    """Answers of a first request that nobody asked for, encoded."""

    @classmethod
    def of(
        cls,
        number: int,
        deadline: float,
        journal: Journal,
        entropy: Entropy,
        id: str = "",
        pending: tuple[Pending, ...] = (),
        trace: str = "",
        incarnation: str = "",
    ) -> "Call":
        """Return a call; one without an id begins now, and its id is drawn when it is needed."""
        entries, seed = journal.entries, journal.seed
        call = cls(number, deadline, journal, entropy, entries, seed, id, trace, incarnation)
        for one in pending:
            call.pending[one.key] = one
        return call

    @property
    def id(self) -> str:
        """128 random bits, the same in every round."""
        if not self._id:
            self._draw()
        return self._id

    @property
    def seed(self) -> bytes:
        """What `ctx.uuid` and `ctx.random` are derived from."""
        if not self._seed:
            self._draw()
        return self._seed

    @property
    def round(self) -> int:
        """The number of this round since the call was last started; the first is 1."""
        return self.number % ROUNDS_PER_START

    @property
    def generation(self) -> int:
        """How often the call was started over by its caller."""
        return self.number // ROUNDS_PER_START

    def _draw(self) -> None:
        """Draw both at once: a call that needs one of them nearly always needs the other."""
        drawn = self._entropy(_ID + _SEED)
        self._id = self._id or drawn[:_ID].hex()
        self._seed = self._seed or drawn[_ID:]

    def share(self, call: str) -> None:
        """Note that an effect of an equal call counts for this one."""
        self.shares |= {call}

    async def tell(self, store: Store, *, lost: bool = False) -> None:
        """Let equal calls do what this one has done: its caller knows of it.

        With `lost` the caller does not, and will not hear of it from this call: an equal one gets
        what was done. A store that is out of reach keeps equal calls waiting, which harms nobody.
        """
        with contextlib.suppress(StoreError):
            if self.began_effect:
                await store.tell(self.id, lost=lost)
            for call in () if lost else self.shares:
                await store.tell(call)

    def next(self, journal: Journal, pending: tuple[Pending, ...]) -> "Call":
        """Return the same call in its next round, where no token carries it."""
        following = Call.of(
            self.number + 1,
            self.deadline,
            journal,
            self._entropy,
            id=self.id,
            pending=pending,
            trace=self.trace,
        )
        following.began_effect = self.began_effect
        for call in self.shares:
            following.share(call)
        return following

    def take_journal(self, journal: Journal) -> None:
        """Take the journal that was fetched from the store, below what this round has brought."""
        self.handle = None
        self.journal = journal
        self._seed = journal.seed
        self.entries = [*journal.entries, *self.entries]

    def restart(self, journal: Journal) -> None:
        """Begin the call again with another version of its handler: the answers are not for it."""
        self.journal = journal
        self.entries = journal.entries
        self.pending = {}
        self.rejected = {}

    def forget_doubt(self, doubt: Entry) -> None:
        """Forget that an effect had an unknown end; what followed need not be read any more."""
        self.entries = _without_doubt(self.entries, doubt)
        self.timed = _without_doubt(self.timed, doubt)
        self.journal = msgspec.structs.replace(
            self.journal, entries=_without_doubt(self.journal.entries, doubt)
        )

    def accept_pushed(self, answers: Mapping[str, Any], now: float) -> None:
        """Take in answers of a back channel, over which an ask may also end without one."""
        ended = {key: raw for key, raw in answers.items() if unanswered(raw)}
        self.accept({key: raw for key, raw in answers.items() if key not in ended}, now)
        given = [_answer(self.pending[key], raw) for key, raw in ended.items()]
        self.entries = [*self.entries, *given]

    def accept(self, answers: object, now: float) -> bytes:
        """Take in the answers to pending asks; return the digest that the claim keeps.

        Raises:
            InvalidRequest: Not a map, or an answer of the wrong shape; nothing is spent.
        """
        given = check_map(answers)
        accepted: dict[str, Any] = {}
        entries = [*self.entries]
        for key, pending in self.pending.items():
            late = pending.expires and not now < pending.expires
            raw: Mapping[str, Any] = EXPIRED
            if key in given:
                raw = accepted[key] = check_shape(pending.kind, key, given[key])
            elif not late:
                continue
            if late:
                raw = EXPIRED
            elif pending.schema and pending.kind == "form" and not self._fits(pending, raw):
                continue
            entry = _answer(pending, raw)
            entries.append(entry)
            if pending.expires:
                self.timed = [*self.timed, entry]
        self.entries = entries
        # With the seed, which only tokens carry: who reads the ledger cannot guess answers.
        return short_digest(self._seed or self.seed, canonical(accepted)) if accepted else b""

    def _fits(self, pending: Pending, raw: Mapping[str, Any]) -> bool:
        """Check content against the schema it was asked with, where no re-run will (ELICIT-24)."""
        if raw.get("action") != "accept":
            return True
        try:
            _compiled(pending.schema).read(raw["content"])
        except AnswerInvalid as error:
            rejected = Rejected(pending.tries + 1, reasons(error, secret=pending.secret))
            self.rejected = {**self.rejected, pending.key: rejected}
            return False
        return True

    def tries(self, key: str) -> int:
        """Return how many answers to an ask were refused, in this round and those before it.

        An answer that stays away does not give back the tries that were used.
        """
        before = self.rejected.get(key) or self.pending.get(key)
        return 0 if before is None else before.tries

    def reject(self, key: str, reason: str, limit: int) -> None:
        """Note an answer that does not fit: its ask is put again, or the call ends.

        Raises:
            ToolError: It has been asked for again so many times already.
        """
        rejected = Rejected(self.tries(key) + 1, reason)
        rejected.check(key, limit)
        self.rejected = {**self.rejected, key: rejected}

    def take_unasked(self, answers: object, *, keep: bool) -> None:
        """Look at the answers of a first request; keep them for a tool that opted in."""
        unasked: dict[str, bytes] = {}
        given = check_map(answers)
        for key, raw in given.items() if keep else ():
            if not isinstance(raw, dict):
                raise InvalidRequest(f"the answer to {safe(key, 128)!r} must be an object")
            unasked[key] = encode_value(cast("dict[str, Any]", raw))
        self.unasked = unasked


def _answer(pending: Pending, raw: Mapping[str, Any]) -> Entry:
    """Return the entry of an answer, which says what only the question tells: URL or approval."""
    if pending.kind == "url" and pending.schema and raw.get("action") == "accept":
        raw = {**raw, "url": pending.schema.decode()}
    elif pending.schema == APPROVAL:
        raw = {**raw, "approval": True}
    payload, secret, branch = encode_value(raw), pending.secret, pending.branch
    return Entry("ask", pending.key, payload, pending.digest, pending.note, secret, branch=branch)


def _without_doubt(entries: Sequence[Entry], doubt: Entry) -> list[Entry]:
    """Return entries without the one of an effect of unknown end, those after it as carried."""
    names = [(entry.kind, entry.key) for entry in entries]
    if (doubt.kind, doubt.key) not in names:
        return list(entries)
    at = names.index((doubt.kind, doubt.key))
    later = [msgspec.structs.replace(entry, carried=True) for entry in entries[at + 1 :]]
    return [*entries[:at], *later]


def check_map(answers: object) -> dict[str, Any]:
    """Return the answers as a map; absent ones are an empty map."""
    if answers is None:
        return {}
    if not isinstance(answers, dict):
        raise InvalidRequest("inputResponses must be an object")
    return cast("dict[str, Any]", answers)


@lru_cache(maxsize=512)
def _compiled(schema: bytes) -> FlatSchema:
    given = APPROVE if schema == APPROVAL else msgspec.json.decode(schema)
    return FlatSchema.tolerant(given)


# --- another version of the handler --------------------------------------------------------------


async def restart(store: Store, recorded: str, call: Call, handler: Handler) -> None:
    """Begin a running call again with another version of its handler: only effects are kept.

    What an attempt did that failed before its end is in the ledger only.

    Raises:
        Diverged: The author wants no restart, or an effect has no `retry=True`.
    """
    options, journal = handler.options, call.journal
    effects = [e for e in call.entries if e.kind == "effect"]
    if options.on_version_change == "refuse" or any(not e.retry for e in effects):
        raise _version_changed(recorded, handler)
    known = {entry.key for entry in effects}
    if any(row.key not in known for row in await store.effects(call.id)):
        raise _version_changed(recorded, handler)
    carried = [msgspec.structs.replace(e, carried=True) for e in effects]
    call.restart(Journal(journal.seed, carried, None, journal.asked, journal.pauses))


def _version_changed(recorded: str, handler: Handler) -> Diverged:
    return Diverged(
        recorded=f"version {recorded!r} of {handler.identity}",
        now=f"version {handler.options.version!r}",
        cure='Start the call again; or on_version_change="restart", which is refused after an '
        "effect that has no retry=True.",
    )
