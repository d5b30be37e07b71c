"""The journal: what a call has learned so far. Append-only values, and the rules of reading them.

Theory. A handler is re-run from its first line in every round. The journal makes the re-run take
the same path: each ask, memo and effect is looked up by kind and key before it is done again, and
compared by digest, so that other code or another question under the same key is found (P2).
Entries of earlier rounds are *unread* until the re-run comes past them. Anything new while
entries are unread means that the code took another path (S4-5).

Knows no wire, no clock, no token and no store.
"""

from typing import Any, Literal

import msgspec

from antiphon.core.asks import Kind
from antiphon.errors import Diverged, KeyReused

EntryKind = Literal["ask", "memo", "effect", "patch"]


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One thing learned."""

    kind: EntryKind
    key: str
    value: Any
    digest: bytes = b""
    """Of the question (ask), or of function and arguments (effect)."""

    note: str = ""
    """What an error text shows: the start of the question, the name of the function."""

    secret: bool = False
    retry: bool = False
    """Whether an effect may be called again with the same idempotency key."""

    carried: bool = False
    """Whether it was made by another version of the handler: it may be read late, or never."""


class Pending(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An ask that is out, as the token remembers it."""

    key: str
    kind: Kind
    digest: bytes
    note: str = ""
    tries: int = 0
    """How many answers were refused because they did not fit."""

    expires: float = 0.0
    """When the answer becomes `Expired`; 0 is never."""

    schema: bytes = b""
    """The form's schema, where no re-run can tell it (native handlers)."""

    secret: bool = False


class Journal(msgspec.Struct, array_like=True):
    """What a token carries beside its claims."""

    seed: bytes
    """Of `ctx.uuid` and `ctx.random`; drawn when the call is born."""

    entries: list[Entry] = msgspec.field(default_factory=list[Entry])
    state: Any = None
    """What a native handler gave to `InputRequired(state=...)`."""

    asked: int = 0
    """Rounds that ended in a question."""

    pauses: int = 0
    """Rounds that ended state-only."""

    native: bool = False
    """Whether the author returns `InputRequired`: then every round may read what it likes."""


class Handle(msgspec.Struct, array_like=True, frozen=True):
    """Where a journal lies that is too large or too secret for a token (S6-1)."""

    round: int
    digest: bytes
    seed: bytes = b""
    """Of the journal, so that answers can be compared without fetching it."""


_CURE = (
    "Ask, remember and act in the same order and wording on every round; change running calls "
    "with ctx.patched(...) or version=."
)


PATCHED = "patched:"
"""How the keys of `ctx.patched` begin."""


def describe(kind: str, key: str, note: str) -> str:
    """Name an entry in an error text."""
    return f"{kind} {key!r} ({note})" if note else f"{kind} {key!r}"


class Mark(msgspec.Struct, frozen=True, gc=False):
    """A place in a run."""

    unread: frozenset[tuple[EntryKind, str]]
    fresh: int


def _expected(entry: Entry) -> bool:
    """Tell whether a re-run must come past an entry. A mark of `ctx.patched` may be gone by now."""
    return not entry.carried and not (entry.kind == "patch" and entry.key.startswith(PATCHED))


class Replay:
    """A journal being read by one run of a handler, and what the run adds to it."""

    __slots__ = ("_entries", "_unread", "_used", "fresh")

    def __init__(self, entries: list[Entry], *, strict: bool = True) -> None:
        """Read entries; only a strict replay must come past all of them before anything new."""
        self._entries: dict[tuple[EntryKind, str], Entry] = {}
        self._unread: dict[tuple[EntryKind, str], None] = {}
        if entries:
            self._entries = {(entry.kind, entry.key): entry for entry in entries}
            if strict:
                self._unread = {n: None for n, entry in self._entries.items() if _expected(entry)}
        self._used: set[tuple[str, str]] = set()
        self.fresh: list[Entry] = []

    @property
    def replaying(self) -> bool:
        """Whether entries of earlier rounds are still unread."""
        return bool(self._unread)

    def knows(self, kind: EntryKind, key: str) -> bool:
        """Tell whether the journal holds this entry, without reading it."""
        return (kind, key) in self._entries

    def peek(self, kind: EntryKind, key: str) -> Entry | None:
        """Look at an entry without reading it."""
        return self._entries.get((kind, key))

    def recall(self, kind: EntryKind, key: str, digest: bytes, note: str) -> Entry | None:
        """Read an entry; None if there is none yet.

        Raises:
            KeyReused: The run has used this key already.
            Diverged: The journal holds something else under this key.
        """
        name = (kind, key)
        if name in self._used:
            raise KeyReused(kind, key)
        self._used.add(name)
        entry = self._entries.get(name)
        if entry is None:
            return None
        if entry.digest != digest:
            raise Diverged(
                recorded=describe(kind, key, entry.note),
                now=describe(kind, key, note),
                cure=_CURE,
            )
        self._unread.pop(name, None)
        return entry

    def seen(self, kind: EntryKind, key: str) -> Entry | None:
        """Read an entry that carries no digest and may be read more than once."""
        entry = self._entries.get((kind, key))
        if entry is not None:
            self._unread.pop((kind, key), None)
        return entry

    def skip(self, kind: EntryKind, key: str) -> None:
        """Count an entry as read and its key as used, without running what made it."""
        self._unread.pop((kind, key), None)
        self._used.add((kind, key))

    def used(self, kind: EntryKind, key: str) -> bool:
        """Tell whether this run has used a key already."""
        return (kind, key) in self._used

    def mark(self) -> "Mark":
        """Remember how far the run has come; `since` tells what it has touched from there on."""
        return Mark(frozenset(self._unread), len(self.fresh))

    def since(self, mark: "Mark") -> list[tuple[EntryKind, str]]:
        """Name the entries that were read or made since a mark."""
        read = [name for name in mark.unread if name not in self._unread]
        return [*sorted(read), *((e.kind, e.key) for e in self.fresh[mark.fresh :])]

    def check_new(self, kind: str, key: str, note: str) -> None:
        """Refuse something new while recorded entries are unread (S4-5)."""
        for old_kind, old_key in self._unread:
            old = self._entries[(old_kind, old_key)]
            raise Diverged(
                recorded=describe(old_kind, old_key, old.note),
                now=describe(kind, key, note),
                cure=_CURE,
            )

    def entries(self) -> list[Entry]:
        """Give everything learned so far, in order."""
        return list(self._entries.values())

    def forget(self, kind: EntryKind, key: str) -> None:
        """Drop an entry that did not fit or is asked for again, as if it had never come."""
        self._entries.pop((kind, key), None)
        self._unread.pop((kind, key), None)

    def record(self, entry: Entry) -> None:
        """Add what this run learned."""
        self._entries[(entry.kind, entry.key)] = entry
        self._used.add((entry.kind, entry.key))
        self.fresh.append(entry)
