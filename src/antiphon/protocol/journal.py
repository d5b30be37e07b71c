"""The journal: what a call has learned so far. Append-only entries, and the rules of reading them.

Theory. A handler is re-run from its first line in every round. The journal makes the re-run take
the same path: each ask, memo and effect is looked up by kind and key before it is done again, and
compared by digest, so that other code or another question under the same key is found. An entry
holds what the handler saw, a failure as well as a value, as encoded JSON: whoever reads it decodes
it, so nothing that a handler does with a value can change the journal.

Entries of earlier rounds are *unread* until the re-run comes past them. Something new in the
handler's own task while entries of its own are unread means that the code took another path, and
so does returning without having read the recorded asks and effects. Entries made by a child task
(a *branch*) are not held against the handler's own task: a branch may be slow, or cancelled.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Literal

import msgspec

from antiphon.errors import Diverged
from antiphon.protocol.digest import short_digest
from antiphon.protocol.journal_index import AGAIN, EntryKind, JournalIndex, Name

EntryOutcome = Literal["ok", "failed", "not-done", "uncertain", "cut"]
"""What the handler saw: a value, an error, `NotDone`, `EffectUncertain`, or (`cut`) that its own
code, such as a time limit, cancelled what it was waiting for."""

encode_value: Callable[[Any], bytes] = msgspec.json.encode
decode_value: Callable[[bytes], Any] = msgspec.json.decode

_MUST_READ = frozenset({"ask", "effect"})
"""Kinds that an execution which returns must have read."""


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One thing learned."""

    kind: EntryKind
    key: str
    payload: bytes
    """Encoded JSON."""

    digest: bytes = b""
    """Of the question (ask), or of function and arguments (effect)."""

    note: str = ""
    """What an error text shows: the start of the question, the name of the function."""

    secret: bool = False
    """Whether it must stay out of tokens: its journal is kept in the store."""

    retry: bool = False
    """Whether an effect may be called again with the same idempotency key."""

    carried: bool = False
    """Whether it was made by another version of the handler (`on_version_change="restart"`): the
    re-run may come to it late, or never."""

    outcome: EntryOutcome = "ok"
    branch: bool = False
    """Whether a child task of the handler made it."""

    reused: bool = False
    """Whether the result of an effect was taken from an earlier call."""

    def value(self) -> Any:
        """Decode the payload: a new value for every reader."""
        return decode_value(self.payload)


class Journal(msgspec.Struct, array_like=True):
    """What a call knows between two rounds: in its token, in the store, or in a task's row."""

    seed: bytes
    """Of `ctx.uuid` and `ctx.random`; drawn when the call is born."""

    entries: list[Entry] = msgspec.field(default_factory=list[Entry])
    state: Any = None
    """What a native handler returned as `InputRequired(state=...)`, as encoded JSON."""

    asked: int = 0
    """How many rounds ended in a question to the client."""

    pauses: int = 0
    """How many rounds ended state-only: without a question to the client."""

    native: bool = False
    """Whether the author returns `InputRequired`: then every round may read what it likes."""

    kept: list[Entry] = msgspec.field(default_factory=list[Entry])
    """Memos of a call that its client has started over. The digest of each is that of the answers
    before it: after other answers it is computed anew."""


_CURE = (
    "Ask, remember and act in the same order and wording on every round; change running calls "
    "with ctx.patched(...) or version=."
)
_END = "the end of the handler before it"
_IN_BRANCH = "something new in a branch"

_key_of = attrgetter("key")

_FEW = 64
"""Entries that are looked through for a key, without an index."""


def describe(kind: str, key: str, note: str = "") -> str:
    """Name an entry in an error text."""
    key = key.partition(AGAIN)[0]
    return f"{kind} {key!r} ({note})" if note else f"{kind} {key!r}"


def _diverged(old: Entry, now: str, short: str) -> Diverged:
    """Return the error that names both sides: with their notes for the author, and without."""
    recorded = describe(old.kind, old.key, old.note)
    return Diverged(
        recorded=recorded, now=now, cure=_CURE, names=(describe(old.kind, old.key), short)
    )


def answers_digest(entries: Iterable[Entry]) -> bytes:
    """Return a digest of the answers among some entries."""
    answers = sorted((entry.key, entry.payload) for entry in entries if entry.kind == "ask")
    return short_digest(*(part for key, payload in answers for part in (key.encode(), payload)))


def memos_to_keep(journal: Journal, entries: list[Entry]) -> list[Entry]:
    """Return what a call that is started over need not compute again: memos and times.

    What was read of a client and its session is not among them: it may be another one.
    """
    kept = {entry.key: entry for entry in journal.kept}
    digest, asks = answers_digest(()), 0
    for number, entry in enumerate(entries):
        if entry.kind == "ask":
            asks += 1
        elif entry.kind == "memo" and entry.outcome == "ok" and not entry.key.startswith("ctx."):
            if asks:
                digest, asks = answers_digest(entries[:number]), 0
            kept[entry.key] = msgspec.structs.replace(entry, digest=digest)
    return list(kept.values())


class Replay(msgspec.Struct, eq=False):
    """A journal being read by one execution of a handler, and what the execution adds to it.

    A re-run nearly always reads the entries in the order in which they were made. For as long as it
    does, how many it has read says everything; the first other thing that it does makes an index.
    """

    given: list[Entry]
    """What earlier rounds have learned, and the answers of this one; no name twice."""

    strict: bool
    """Whether all of it must be read before anything new."""

    _ahead: list[Entry]
    """What is to be read next, the first of it last; nothing once there is an index."""

    fresh: list[Entry] = []
    """What this execution has added."""

    _new: Name | None = None
    """What was looked for in order and is not recorded yet."""

    _made: JournalIndex | None = None

    @property
    def _index(self) -> JournalIndex:
        if self._made is None:
            read = len(self.given) - len(self._ahead) if self.strict else 0
            index = self._made = JournalIndex(self.given, read, self.strict)
            self._ahead = []
            for entry in self.fresh:
                index.add(entry)
            if self._new is not None:
                index.used.add(self._new)
        return self._made

    # --- reading ---------------------------------------------------------------------------------

    def recall(self, kind: EntryKind, key: str, digest: bytes, note: str) -> Entry | None:
        """Read an entry; None if there is none yet.

        Raises:
            KeyReused: This execution has used the key already.
            Diverged: The journal holds something else under this key.
        """
        ahead = self._ahead
        if ahead:
            entry = ahead[-1]
            if entry.key == key and entry.kind == kind and entry.digest == digest:
                return ahead.pop()
        elif self._is_new(key):
            self._new = (kind, key)
            return None
        entry = self._index.recall(kind, key)
        if entry is None or entry.digest == digest:
            return entry
        raise _diverged(entry, describe(kind, key, note), describe(kind, key))

    def _is_new(self, key: str) -> bool:
        """Return whether a few entries, all of them read, say that nothing has used a key."""
        if self._made is not None or self._new is not None or not self.strict:
            return False
        few = len(self.given) + len(self.fresh) <= _FEW
        return few and key not in map(_key_of, self.given) and key not in map(_key_of, self.fresh)

    def seen(self, kind: EntryKind, key: str) -> Entry | None:
        """Read an entry that carries no digest and may be read more than once."""
        self._index.unread.pop((kind, key), None)
        return self._index.entries.get((kind, key))

    def skip(self, kind: EntryKind, key: str) -> None:
        """Count an entry as read and its key as used, without running what made it.

        For resolvers: one whose result is known is not run again.
        """
        self._index.unread.pop((kind, key), None)
        self._index.used.add((kind, key))

    def peek(self, kind: EntryKind, key: str) -> Entry | None:
        """Look at an entry without reading it."""
        return self._index.entries.get((kind, key))

    def used(self, kind: EntryKind, key: str) -> bool:
        """Return whether this execution has used a key already."""
        return (kind, key) in self._index.used

    def asked(self) -> frozenset[str]:
        """Return the keys of the asks that this execution has come past."""
        return frozenset(key for kind, key in self._index.used if kind == "ask")

    @property
    def unread(self) -> Mapping[Name, Entry]:
        """Entries that this execution must come past and has not."""
        return self._index.unread

    def may_be_behind(self) -> bool:
        """Return whether anything may be unread; where nothing is, that costs nothing to know."""
        return bool(self._ahead if self._made is None else self._made.unread)

    # --- adding ----------------------------------------------------------------------------------

    def record(self, entry: Entry) -> Entry:
        """Add what this execution learned."""
        if self._made is None and self._new == (entry.kind, entry.key):
            self._new = None
        else:
            entry = self._index.add(entry)
        self.fresh.append(entry)
        return entry

    def replace(self, entry: Entry) -> Entry:
        """Put an entry in the place of the one of the same name."""
        name = (entry.kind, entry.key)
        self._index.entries[name] = entry
        places = [at for at, one in enumerate(self.fresh) if (one.kind, one.key) == name]
        if places:
            self.fresh[places[-1]] = entry
        else:
            self.fresh.append(entry)
        return entry

    def tolerate_after(self, entry: Entry) -> None:
        """Let everything that was learned after an entry stay unread: the path is another one."""
        later = list(self._index.entries.values())
        for one in later[list(self._index.entries).index((entry.kind, entry.key)) + 1 :]:
            if self._index.unread.pop((one.kind, one.key), None) is not None:
                self.replace(msgspec.structs.replace(one, carried=True))

    def forget(self, kind: EntryKind, key: str) -> None:
        """Drop an entry that did not fit or is asked for again, as if it had never come."""
        self._index.entries.pop((kind, key), None)
        self._index.unread.pop((kind, key), None)

    def entries(self) -> list[Entry]:
        """Return everything learned so far, in order."""
        if self._made is None:
            return [*self.given, *self.fresh]
        return list(self._made.entries.values())

    # --- the two rules ---------------------------------------------------------------------------

    def check_new(self, kind: str, key: str, note: str) -> None:
        """Refuse something new of the handler's own task while entries of its own are unread.

        Raises:
            Diverged: There are some.
        """
        for old in self.unread.values():
            if not old.branch:
                raise _diverged(old, describe(kind, key, note), describe(kind, key))

    def check_end(self, *, branches_cut: bool, later: set[str], now: str = "") -> None:
        """Refuse the end of a handler that has not read the recorded asks and effects.

        Args:
            branches_cut: Whether the author's code has cancelled child tasks: they may not have
                come to their entries.
            later: Keys of effects that run after the handler (`ctx.on_commit`).
            now: What a branch has done anew instead.

        Raises:
            Diverged: There are some.
        """
        for old in self.unread.values():
            if old.kind not in _MUST_READ or (old.kind == "effect" and old.key in later):
                continue
            if not (branches_cut and old.branch):
                raise _diverged(old, now or _END, _IN_BRANCH if now else _END)
