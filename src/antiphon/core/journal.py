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

from typing import Any, Literal

import msgspec

from antiphon.core.asks import Kind
from antiphon.errors import Diverged, KeyReused

EntryKind = Literal["ask", "memo", "effect", "patch"]
EntryOutcome = Literal["ok", "failed", "not-done", "uncertain", "cut"]
"""What the handler saw: a value, an error, `NotDone`, `EffectUncertain`, or a cancellation."""

encode_value = msgspec.json.encode
decode_value = msgspec.json.decode

_REPEATABLE = frozenset({"not-done", "cut"})
"""Outcomes after which one execution may use the key again."""

_MUST_READ = frozenset({"ask", "effect"})
"""Kinds that an execution which returns must have read."""


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One thing learned."""

    kind: EntryKind
    key: str
    payload: Any
    """Encoded JSON. Only a journal written by an earlier release has decoded values here, until
    `Journal` converts them."""

    digest: bytes = b""
    """Of the question (ask), or of function and arguments (effect)."""

    note: str = ""
    """What an error text shows: the start of the question, the name of the function."""

    secret: bool = False
    retry: bool = False
    """Whether an effect may be called again with the same idempotency key."""

    carried: bool = False
    """Whether it was made by another version of the handler: it may be read late, or never."""

    outcome: EntryOutcome = "ok"
    branch: bool = False
    """Whether a child task of the handler made it."""

    reused: bool = False
    """Whether the result of an effect was taken from an earlier call."""

    def value(self) -> Any:
        """Decode the payload: a new value for every reader."""
        return decode_value(self.payload)


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
    """The form's schema, or the URL, where no re-run can tell it (native handlers)."""

    secret: bool = False
    branch: bool = False
    """Whether a child task of the handler asks it."""


class Journal(msgspec.Struct, array_like=True):
    """What a token carries beside its claims."""

    seed: bytes
    """Of `ctx.uuid` and `ctx.random`; drawn when the call is born."""

    entries: list[Entry] = msgspec.field(default_factory=list[Entry])
    state: Any = None
    """What a native handler returned as `InputRequired(state=...)`, as encoded JSON."""

    asked: int = 0
    """Rounds that ended in a question."""

    pauses: int = 0
    """Rounds that ended state-only."""

    native: bool = False
    """Whether the author returns `InputRequired`: then every round may read what it likes."""

    def __post_init__(self) -> None:
        """Convert what an earlier release wrote: all of its values are decoded, or none is."""
        if self.entries and type(self.entries[0].payload) is not bytes:
            self.entries = [_converted(entry) for entry in self.entries]
        if self.state is not None and type(self.state) is not bytes:
            self.state = encode_value(self.state)


def _converted(entry: Entry) -> Entry:
    value, outcome, reused = entry.payload, "ok", False
    if type(value) is bytes:
        return entry
    if entry.kind == "effect":
        reused = bool(value.get("reused"))
        outcome = "failed" if "error" in value else "ok"
        value = value["error"] if "error" in value else value["ok"]
    return msgspec.structs.replace(
        entry, payload=encode_value(value), outcome=outcome, reused=reused
    )


class Handle(msgspec.Struct, array_like=True, frozen=True):
    """Where a journal lies that is too large or too secret for a token."""

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

_AGAIN = "\n"
"""Stands between a key and the number of its try, where one execution used the key again."""


_END = "the end of the handler before it"


def describe(kind: str, key: str, note: str = "") -> str:
    """Name an entry in an error text."""
    key = key.partition(_AGAIN)[0]
    return f"{kind} {key!r} ({note})" if note else f"{kind} {key!r}"


class Mark(msgspec.Struct, frozen=True, gc=False):
    """A place in an execution."""

    unread: frozenset[tuple[EntryKind, str]]
    fresh: int


def _expected(key: str) -> bool:
    """Return whether a re-run must read a patch entry: marks of `ctx.patched` may be gone."""
    return not key.startswith(PATCHED)


class Replay:
    """A journal being read by one execution of a handler, and what the execution adds to it."""

    __slots__ = ("_encoded", "_entries", "_read_size", "_tries", "_used", "fresh", "unread")

    def __init__(self, entries: list[Entry], *, strict: bool = True) -> None:
        """Read entries; only a strict replay must read all of them before anything new."""
        self._entries: dict[tuple[EntryKind, str], Entry] = {}
        self.unread: dict[tuple[EntryKind, str], None] = {}
        """Entries of earlier rounds that this execution has not come past."""

        if entries:
            self._entries = {(entry.kind, entry.key): entry for entry in entries}
            if strict:
                self.unread = {
                    name: None
                    for name, entry in self._entries.items()
                    if not entry.carried and (entry.kind != "patch" or _expected(entry.key))
                }
        self._used: set[tuple[EntryKind, str]] = set()
        self._tries: dict[tuple[EntryKind, str], int] = {}
        self.fresh: list[Entry] = []
        self._encoded: list[bytes] = []
        self._read_size = -1

    @property
    def replaying(self) -> bool:
        """Whether entries of earlier rounds are still unread."""
        return bool(self.unread)

    def knows(self, kind: EntryKind, key: str) -> bool:
        """Return whether the journal holds this entry, without reading it."""
        return (kind, key) in self._entries

    def peek(self, kind: EntryKind, key: str) -> Entry | None:
        """Look at an entry without reading it."""
        return self._entries.get((kind, key))

    def recall(self, kind: EntryKind, key: str, digest: bytes, note: str) -> Entry | None:
        """Read an entry; None if there is none yet.

        Raises:
            KeyReused: This execution has used the key already.
            Diverged: The journal holds something else under this key.
        """
        name = (kind, key)
        if name in self._used:
            name = self._next(kind, key)
        self._used.add(name)
        entry = self._entries.get(name)
        if entry is None:
            return None
        if entry.digest != digest:
            raise Diverged(
                recorded=describe(kind, key, entry.note),
                now=describe(kind, key, note),
                cure=_CURE,
                names=(describe(kind, key), describe(kind, key)),
            )
        self.unread.pop(name, None)
        return entry

    def _next(self, kind: EntryKind, key: str) -> tuple[EntryKind, str]:
        """Name the next use of a key: only a try that came to nothing may be followed by another.

        Raises:
            KeyReused: The key is taken.
        """
        name = self._name(kind, key)
        if name not in self._used:
            return name
        last = self._entries.get(name)
        if last is None or last.outcome not in _REPEATABLE:
            raise KeyReused(kind, key)
        self._tries[kind, key] = self._tries.get((kind, key), 1) + 1
        return self._name(kind, key)

    def _name(self, kind: EntryKind, key: str) -> tuple[EntryKind, str]:
        if not self._tries or (kind, key) not in self._tries:
            return kind, key
        return kind, f"{key}{_AGAIN}{self._tries[kind, key]}"

    def seen(self, kind: EntryKind, key: str) -> Entry | None:
        """Read an entry that carries no digest and may be read more than once."""
        entry = self._entries.get((kind, key))
        if entry is not None:
            self.unread.pop((kind, key), None)
        return entry

    def skip(self, kind: EntryKind, key: str) -> None:
        """Count an entry as read and its key as used, without running what made it."""
        self.unread.pop((kind, key), None)
        self._used.add((kind, key))

    def used(self, kind: EntryKind, key: str) -> bool:
        """Return whether this execution has used a key already."""
        return (kind, key) in self._used

    def mark(self) -> "Mark":
        """Remember how far the execution has come; `since` tells what it has touched after that."""
        return Mark(frozenset(self.unread), len(self.fresh))

    def since(self, mark: "Mark") -> list[tuple[EntryKind, str]]:
        """Name the entries that were read or made since a mark."""
        read = [name for name in mark.unread if name not in self.unread]
        return [*sorted(read), *((e.kind, e.key) for e in self.fresh[mark.fresh :])]

    def check_new(self, kind: str, key: str, note: str) -> None:
        """Refuse something new of the handler's own task while entries of its own are unread.

        Raises:
            Diverged: There are some.
        """
        for name in self.unread:
            old = self._entries[name]
            if not old.branch:
                raise Diverged(
                    recorded=describe(old.kind, old.key, old.note),
                    now=describe(kind, key, note),
                    cure=_CURE,
                    names=(describe(old.kind, old.key), describe(kind, key)),
                )

    def check_end(self, *, branches_cut: bool, later: set[str], now: str = "") -> None:
        """Refuse the end of a handler that has not read the recorded asks and effects.

        Args:
            branches_cut: Whether the author's code has cancelled child tasks: they may not have
                come to their entries.
            later: Keys of effects that run after the handler.
            now: What a branch has done anew instead.

        Raises:
            Diverged: There are some.
        """
        for name in self.unread:
            old = self._entries[name]
            if old.kind not in _MUST_READ or (old.kind == "effect" and old.key in later):
                continue
            if not (branches_cut and old.branch):
                raise Diverged(
                    recorded=describe(old.kind, old.key, old.note),
                    now=now or _END,
                    cure=_CURE,
                    names=(
                        describe(old.kind, old.key),
                        "something new in a branch" if now else _END,
                    ),
                )

    def entries(self) -> list[Entry]:
        """Return everything learned so far, in order."""
        return list(self._entries.values())

    def forget(self, kind: EntryKind, key: str) -> None:
        """Drop an entry that did not fit or is asked for again, as if it had never come."""
        self._entries.pop((kind, key), None)
        self.unread.pop((kind, key), None)

    def record(self, entry: Entry) -> Entry:
        """Add what this execution learned."""
        name = self._name(entry.kind, entry.key)
        if name[1] is not entry.key and name[1] != entry.key:
            entry = msgspec.structs.replace(entry, key=name[1])
        self._entries[name] = entry
        self._used.add(name)
        self.fresh.append(entry)
        return entry

    def prefix(self, before: list[Entry]) -> bytes:
        """Return what this execution has learned as an encoded journal; nothing if it is nothing.

        Each entry is encoded once, however often this is asked for.
        """
        if not before and not self.fresh:
            return b""
        self._encode_fresh()
        count = len(before) + len(self.fresh)
        head = b"\x92" + _encode(b"") + b"\xdd" + count.to_bytes(4, "big")
        return b"".join([head, *map(_encode, before), *self._encoded])

    def size(self) -> int:
        """Return how many bytes the entries take; each is measured once."""
        if self._read_size < 0:
            fresh = {(entry.kind, entry.key) for entry in self.fresh}
            old = [entry for name, entry in self._entries.items() if name not in fresh]
            self._read_size = sum(len(_encode(entry)) for entry in old)
        self._encode_fresh()
        return self._read_size + sum(map(len, self._encoded))

    def _encode_fresh(self) -> None:
        for entry in self.fresh[len(self._encoded) :]:
            self._encoded.append(_encode(entry))


_encode = msgspec.msgpack.Encoder().encode
