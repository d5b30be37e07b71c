"""Entries of a journal by name, for a re-run that does not read them in order.

One execution may use a name once. Only a try that came to nothing may be followed by another under
the same key, which has a number in the journal.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

import msgspec

from antiphon.errors import KeyReused

if TYPE_CHECKING:
    from antiphon.protocol.journal import Entry

EntryKind = Literal["ask", "memo", "effect", "patch"]
"""An answer, a computed value, the result of an effect; `patch` marks that the code has come past
a place: `ctx.patched`, `ctx.pause`, `ctx.detach`, a resolver that has run, a call that is held."""

Name = tuple[EntryKind, str]
"""Kind and key of an entry."""

PATCHED = "patched:"
"""How the keys of `ctx.patched` begin. They alone of all patches may be gone in a re-run."""

AGAIN = "\n"
"""Stands between a key and the number of its try, where one execution used the key again."""

_REPEATABLE = frozenset({"not-done", "cut"})
"""Outcomes after which one execution may use the key again."""

name_of: "Callable[[Entry], Name]" = attrgetter("kind", "key")


class JournalIndex:
    """Entries by name, with what was read of them: for a re-run that does not read in order."""

    __slots__ = ("entries", "tries", "unread", "used")

    def __init__(self, given: "list[Entry]", read: int, strict: bool) -> None:
        """Look up entries, of which the first `read` have been read."""
        names = list(map(name_of, given))
        self.entries: dict[Name, Entry] = dict(zip(names, given, strict=True))
        self.used: set[Name] = set(names[:read])
        self.unread: dict[Name, Entry] = {}
        self.tries: Mapping[Name, int] = {}
        for name in names[read:] if strict else ():
            entry = self.entries[name]
            if not (entry.carried or (entry.kind == "patch" and entry.key.startswith(PATCHED))):
                self.unread[name] = entry

    def recall(self, kind: EntryKind, key: str) -> "Entry | None":
        """Read an entry and use its name; None if there is none yet.

        Raises:
            KeyReused: The name is used already.
        """
        name: Name = (kind, key)
        entry = self.unread.pop(name, None)
        if entry is None:
            # New, used already, or one that a re-run need not read.
            if name in self.used:
                name = self._next(kind, key)
                self.unread.pop(name, None)
            entry = self.entries.get(name)
        self.used.add(name)
        return entry

    def _next(self, kind: EntryKind, key: str) -> Name:
        """Name the next use of a key: only a try that came to nothing may be followed by another.

        Raises:
            KeyReused: The key is taken.
        """
        last = self.entries.get(self.name(kind, key))
        if last is None or last.outcome not in _REPEATABLE:
            raise KeyReused(kind, key)
        self.tries = {**self.tries, (kind, key): self.tries.get((kind, key), 1) + 1}
        return self.name(kind, key)

    def name(self, kind: EntryKind, key: str) -> Name:
        """Return the name of the last use of a key."""
        tries = self.tries.get((kind, key), 0)
        return (kind, f"{key}{AGAIN}{tries}") if tries else (kind, key)

    def add(self, entry: "Entry") -> "Entry":
        """Add an entry; the one of a further try is named after it."""
        name = self.name(entry.kind, entry.key)
        if name[1] != entry.key:
            entry = msgspec.structs.replace(entry, key=name[1])
        self.entries[name] = entry
        self.used.add(name)
        return entry
