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

from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from antiphon.errors import Diverged, KeyReused

EntryKind = Literal["ask", "memo", "effect", "patch"]
"""An answer, a computed value, the result of an effect; `patch` marks that the code has come past
a place: `ctx.patched`, `ctx.pause`, `ctx.detach`, a resolver that has run, a call that is held."""

EntryOutcome = Literal["ok", "failed", "not-done", "uncertain", "cut"]
"""What the handler saw: a value, an error, `NotDone`, `EffectUncertain`, or (`cut`) that its own
code, such as a time limit, cancelled what it was waiting for."""

encode_value: Callable[[Any], bytes] = msgspec.json.encode
decode_value: Callable[[bytes], Any] = msgspec.json.decode

_REPEATABLE = frozenset({"not-done", "cut"})
"""Outcomes after which one execution may use the key again."""

_MUST_READ = frozenset({"ask", "effect"})
"""Kinds that an execution which returns must have read."""


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One thing learned."""

    kind: EntryKind
    key: str
    payload: Any
    """Encoded JSON. Only what an earlier release wrote is decoded; `core/earlier_journals.py`."""

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


PATCHED = "patched:"
"""How the keys of `ctx.patched` begin. They alone of all patches may be gone in a re-run."""

_AGAIN = "\n"
"""Stands between a key and the number of its try, where one execution used the key again."""

_CURE = (
    "Ask, remember and act in the same order and wording on every round; change running calls "
    "with ctx.patched(...) or version=."
)
_END = "the end of the handler before it"
_IN_BRANCH = "something new in a branch"

_kind_of, _carried_of = attrgetter("kind"), attrgetter("carried")
_name_of = attrgetter("kind", "key")

Name = tuple[EntryKind, str]
"""Kind and key of an entry."""


def describe(kind: str, key: str, note: str = "") -> str:
    """Name an entry in an error text."""
    key = key.partition(_AGAIN)[0]
    return f"{kind} {key!r} ({note})" if note else f"{kind} {key!r}"


def _diverged(old: Entry, now: str, short: str) -> Diverged:
    """Return the error that names both sides: with their notes for the author, and without."""
    recorded = describe(old.kind, old.key, old.note)
    return Diverged(
        recorded=recorded, now=now, cure=_CURE, names=(describe(old.kind, old.key), short)
    )


class Replay:
    """A journal being read by one execution of a handler, and what the execution adds to it."""

    _tries: Mapping[Name, int] = MappingProxyType({})

    def __init__(self, entries: list[Entry], strict: bool = True) -> None:
        """Read entries; only a strict replay must read all of them before anything new."""
        self.fresh: list[Entry] = []
        """What this execution has added."""

        self.unread: dict[Name, Entry] = {}
        """Entries of earlier rounds that this execution has not come past."""

        self._used: set[Name] = set()
        if not entries:
            self._entries: dict[Name, Entry] = {}
            return
        self._entries = dict(zip(map(_name_of, entries), entries, strict=True))
        if strict:
            self.unread = self._entries.copy()
            if "patch" in map(_kind_of, entries) or True in map(_carried_of, entries):
                self._except_optional()

    def _except_optional(self) -> None:
        """Take out what a re-run need not read."""
        for name, entry in self._entries.items():
            if entry.carried or (entry.kind == "patch" and entry.key.startswith(PATCHED)):
                del self.unread[name]

    # --- reading ---------------------------------------------------------------------------------

    def recall(self, kind: EntryKind, key: str, digest: bytes, note: str) -> Entry | None:
        """Read an entry; None if there is none yet.

        Raises:
            KeyReused: This execution has used the key already.
            Diverged: The journal holds something else under this key.
        """
        name: Name = (kind, key)
        entry = self.unread.pop(name, None)
        if entry is None:
            # New, used already, or one that a re-run need not read.
            if name in self._used:
                name = self._next(kind, key)
                self.unread.pop(name, None)
            entry = self._entries.get(name)
        self._used.add(name)
        if entry is None or entry.digest == digest:
            return entry
        raise _diverged(entry, describe(kind, key, note), describe(kind, key))

    def _next(self, kind: EntryKind, key: str) -> Name:
        """Name the next use of a key: only a try that came to nothing may be followed by another.

        Raises:
            KeyReused: The key is taken.
        """
        last = self._entries.get(self._name(kind, key))
        if last is None or last.outcome not in _REPEATABLE:
            raise KeyReused(kind, key)
        self._tries = {**self._tries, (kind, key): self._tries.get((kind, key), 1) + 1}
        return self._name(kind, key)

    def _name(self, kind: EntryKind, key: str) -> Name:
        tries = self._tries.get((kind, key), 0)
        return (kind, f"{key}{_AGAIN}{tries}") if tries else (kind, key)

    def seen(self, kind: EntryKind, key: str) -> Entry | None:
        """Read an entry that carries no digest and may be read more than once."""
        self.unread.pop((kind, key), None)
        return self._entries.get((kind, key))

    def skip(self, kind: EntryKind, key: str) -> None:
        """Count an entry as read and its key as used, without running what made it.

        For resolvers: one whose result is known is not run again.
        """
        self.unread.pop((kind, key), None)
        self._used.add((kind, key))

    def peek(self, kind: EntryKind, key: str) -> Entry | None:
        """Look at an entry without reading it."""
        return self._entries.get((kind, key))

    def used(self, kind: EntryKind, key: str) -> bool:
        """Return whether this execution has used a key already."""
        return (kind, key) in self._used

    # --- adding ----------------------------------------------------------------------------------

    def record(self, entry: Entry) -> Entry:
        """Add what this execution learned."""
        name = (entry.kind, entry.key)
        if name in self._tries:
            name = self._name(*name)
            entry = msgspec.structs.replace(entry, key=name[1])
        self._entries[name] = entry
        self._used.add(name)
        self.fresh.append(entry)
        return entry

    def forget(self, kind: EntryKind, key: str) -> None:
        """Drop an entry that did not fit or is asked for again, as if it had never come."""
        self._entries.pop((kind, key), None)
        self.unread.pop((kind, key), None)

    def entries(self) -> list[Entry]:
        """Return everything learned so far, in order."""
        return list(self._entries.values())

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
