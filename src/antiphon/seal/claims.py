"""What a token says, how that is written as bytes, and when it is accepted.

A claim is checked by the condition under which it is accepted, so that an odd value (a NaN, a
missing part) is refused. The handler's version is not compared here: another version is no forgery,
and the engine says what it means for the call.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from antiphon.errors import TokenRefused
from antiphon.protocol.asks import Kind
from antiphon.protocol.journal import Journal
from antiphon.protocol.request import Principal
from antiphon.protocol.text import span

FORMAT: Final = 1
"""The format that is written. Members are only ever added at the end, with a default."""

READABLE: Final = frozenset({1})
"""The formats that are read. The next one is read one release before it is written."""

SKEW: Final = 30.0
"""Seconds by which another machine's clock may run ahead before its token is from the future."""

APPROVAL: Final = b"approval"
"""Stands for the schema of an approval: its answer is a yes or a no whoever reads it."""


class Pending(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An ask that is out, as the token or the task's row remembers it."""

    key: str
    kind: Kind
    digest: bytes
    note: str = ""
    tries: int = 0
    """How many answers were refused because they did not fit."""

    expires: float = 0.0
    """When the answer becomes `Expired`; 0 is never."""

    schema: bytes = b""
    """The form's schema, the URL or `APPROVAL`, where no re-run can tell it (native handlers)."""

    secret: bool = False
    branch: bool = False
    """Whether a child task of the handler asks it."""


class Handle(msgspec.Struct, array_like=True, frozen=True):
    """Where a journal lies that is too large or too secret for a token."""

    round: int
    digest: bytes
    seed: bytes = b""
    """Of the journal, so that answers can be compared without fetching it."""


class Claims(msgspec.Struct, array_like=True, frozen=True):
    """Everything a token is bound to, and the journal or where it is stored."""

    format: int
    issued: float
    expires: float
    method: str
    target: str
    arguments: bytes
    """The digest of the arguments."""

    principal: Principal
    audience: str
    call: str
    round: int
    """The number of the round in which this token is redeemed."""

    deadline: float
    """When the whole call ends."""

    handler: str
    version: str
    """The handler's declared version; compared by the engine."""

    pending: tuple[Pending, ...] = ()
    trace: str = ""
    journal: Journal | None = None
    handle: Handle | None = None
    """Exactly one of `journal` and `handle` is present."""

    incarnation: str = ""
    """Of the store in which the token was made; empty where that is not known."""

    def __repr__(self) -> str:
        """Show which round of which call; never what was answered."""
        return f"<Claims call={self.call!r} round={self.round}>"


class Binding(msgspec.Struct, frozen=True):
    """What the current request says of itself. Everything in it must equal the token's claims."""

    method: str
    target: str
    arguments: bytes
    principal: Principal
    audience: str
    handler: str

    def __repr__(self) -> str:
        """Show what is called; never by whom or with what."""
        return f"<Binding {self.method} {self.handler!r}>"


def check(claims: Claims, binding: Binding, now: float) -> None:
    """Accept the claims for this request at this time.

    Raises:
        TokenRefused: With the first claim that does not hold.
    """
    if not claims.issued <= now + SKEW:
        reason = "future"
    elif not now < claims.deadline:
        reason = "deadline"
    elif not now < claims.expires:
        reason = "expired"
    elif claims.method != binding.method:
        reason = "method"
    elif claims.target != binding.target:
        reason = "target"
    elif claims.handler != binding.handler:
        reason = "handler"
    elif claims.arguments != binding.arguments:
        reason = "arguments"
    elif claims.principal != binding.principal:
        reason = "principal"
    elif claims.audience != binding.audience:
        reason = "audience"
    else:
        return
    raise TokenRefused(reason, _when(reason, claims, now))


def _when(reason: str, claims: Claims, now: float) -> str:
    """Return what the log says of a time that does not fit; a clock may be wrong."""
    if reason == "expired":
        return f"expired {span(now - claims.expires)} ago (is a clock wrong?)"
    if reason == "deadline":
        return f"the deadline of its call passed {span(now - claims.deadline)} ago"
    if reason == "future":
        return f"issued {span(claims.issued - now)} in the future (is a clock wrong?)"
    return ""


# --- bytes -------------------------------------------------------------------------------------


_encode: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
encode: Callable[[Claims], bytes] = _encode
encode_journal: Callable[[Journal], bytes] = _encode
"""Encode claims; or a journal alone, for a segment in a store and to know its size. The entries are
encoded already, and only joined."""

_decode_claims = msgspec.msgpack.Decoder(Claims).decode
_decode_journal = msgspec.msgpack.Decoder(Journal).decode


def decode(data: bytes, *, readable: frozenset[int] = READABLE) -> Claims:
    """Read claims that the codec has verified.

    Raises:
        TokenRefused: Of a format that this release does not read.
    """
    try:
        claims = _decode_claims(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise TokenRefused("format") from None
    journal = claims.journal
    if claims.format not in readable or (journal is None) == (claims.handle is None):
        raise TokenRefused("format")
    return claims


def decode_journal(data: bytes) -> Journal:
    """Read a journal that was kept in a store.

    Raises:
        TokenRefused: It is not one.
    """
    try:
        return _decode_journal(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise TokenRefused("format") from None


def largest(journal: Journal, count: int = 3) -> list[tuple[str, int]]:
    """Name the entries that take the most bytes, for `StateTooLarge`."""
    sizes = [(f"{entry.kind} {entry.key}", len(_encode(entry))) for entry in journal.entries]
    if journal.state is not None:
        sizes.append(("state", len(journal.state)))
    return sorted(sizes, key=lambda item: item[1], reverse=True)[:count]
