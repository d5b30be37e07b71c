"""Inbox items and what people decide about them: values, and the one rule of who may decide.

An item is an ask that a person other than the client may answer. A decision is what one person said
to one item; decisions form a chain (`protocol/chain.py`). No clock and no I/O: a store hands in
what it has read under its lock, and writes down the verdict.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from antiphon.protocol.chain import NO_HEAD, ChainHead, linked
from antiphon.protocol.identities import identity_of, may_be_one, may_be_one_of, normal_issuer

Assurance: TypeAlias = Literal["client", "signed-in", "fresh"]
"""How sure a server must be of who decides."""

Status: TypeAlias = Literal["open", "approved", "declined", "answered", "expired", "withdrawn"]
"""`answered`: a form; `withdrawn`: the call was cancelled or answered in the client."""

Choice: TypeAlias = Literal["approve", "decline", "answer"]

FRESH = 300.0
"""Seconds since the sign-in within which an assurance of `fresh` is met."""


class Person(msgspec.Struct, frozen=True):
    """Somebody who has signed in to the console."""

    issuer: str
    subject: str
    name: str = ""
    roles: tuple[str, ...] = ()
    auth_time: float = 0.0
    """When they signed in, in seconds since the epoch."""

    amr: tuple[str, ...] = ()
    """How they signed in, as the login says (RFC 8176)."""

    @property
    def identity(self) -> str:
        """The name under which a store knows this person."""
        return identity_of(self.issuer, self.subject)


class Approver(msgspec.Struct, frozen=True):
    """A person as a handler sees who has decided."""

    issuer: str
    subject: str
    name: str = ""
    roles: tuple[str, ...] = ()
    at: float = 0.0
    """When they decided, in seconds since the epoch by the store's clock."""

    how: str = "client"
    """`client`, `signed-in` or `fresh`."""


class Terms(msgspec.Struct, frozen=True):
    """Who may decide an item, and how many must. Sealed with what is shown.

    The same values lie beside it in columns that a store can search. Whoever writes the database
    can change those; what counts is what the keys have sealed.
    """

    role: str
    need: int
    own: bool
    assurance: Assurance
    owner: str
    behind: tuple[str, ...]
    digest: bytes


class Face(msgspec.Struct, frozen=True):
    """What people are shown of an item. Kept sealed; opened for those who may see it."""

    message: str
    details: tuple[tuple[str, str], ...] = ()
    """What the server says: label and value."""

    why: str = ""
    """The model's own words; never shown as fact."""

    approve: str = "Approve"
    decline: str = "Decline"
    """Labels of the two buttons."""

    caller: str = ""
    client: str = ""
    """Who asked, and with which program, as far as it says."""

    arguments: bytes = b"{}"
    """The arguments of the call, as JSON."""

    schema: bytes = b""
    """Of a form, as JSON."""

    terms: Terms | None = None
    """None only before the item is made."""


class InboxPlace(msgspec.Struct, frozen=True):
    """Where the inbox of a server is, and what it knows about people."""

    url: str
    roles: frozenset[str] | None = None
    """The roles that somebody may hold; None when any name may be one."""

    targets: tuple[str, ...] = ()
    """Where notices go."""

    issuers: frozenset[str] | None = None
    """Who vouches for the people who sign in; None where that is not known beforehand."""

    tells_people: bool = False
    """Whether the console is told which person is which caller (`same_person=`)."""

    def knows(self, issuer: str) -> bool:
        """Tell whether a caller of this issuer can be recognised as one who signs in."""
        if self.issuers is None or self.tells_people:
            return True
        return normal_issuer(issuer) in {normal_issuer(each) for each in self.issuers}


class NewItem(msgspec.Struct, frozen=True):
    """An item to be kept. It is open."""

    id: str
    server: str
    call: str
    key: str
    task: str
    """The row that waits for it."""

    tool: str
    owner: str
    """Who called, by `caller_identity`; empty for an anonymous caller."""

    role: str
    """Whose holders may decide; empty: only the owner."""

    need: int
    """How many different people must say yes."""

    own: bool
    """Whether those who stand behind the call may decide."""

    assurance: Assurance
    digest: bytes
    """Of everything that is shown and bound."""

    arguments: bytes
    """Digest of the call's arguments."""

    within: float
    """Seconds until it expires."""

    face: bytes
    """What is shown, sealed; a store does not look inside."""

    kind: Literal["approval", "form"] = "approval"
    notices: tuple["NewNotice", ...] = ()
    behind: tuple[str, ...] = ()
    """Who stands behind the call, by `identities_behind`: the subject and all who act for it."""


class NewNotice(msgspec.Struct, frozen=True):
    """A notice to be sent. Its id never changes, so a receiver can tell a repetition."""

    id: str
    kind: Literal["asked", "reminded", "decided", "expired"]
    target: str
    delay: float = 0.0
    """Seconds from now until it is due."""


class Item(msgspec.Struct, frozen=True):
    """An item as the store keeps it."""

    id: str
    server: str
    call: str
    key: str
    task: str
    tool: str
    owner: str
    role: str
    need: int
    own: bool
    assurance: Assurance
    digest: bytes
    arguments: bytes
    created: float
    expires: float
    closed: float | None
    status: Status
    kind: Literal["approval", "form"]
    face: bytes
    answer: bytes = b""
    """To a form, sealed."""

    behind: tuple[str, ...] = ()


class Attempt(msgspec.Struct, frozen=True):
    """What a person wants to decide: a pressed button, and what was shown beside it."""

    item: str
    person: Person
    choice: Choice
    digest: bytes
    """Of what was shown."""

    how: Literal["signed-in", "fresh"] = "signed-in"
    """What the page has made sure of."""

    shown: float = 0.0
    """When the page was first shown to this person."""

    note: bytes = b""
    """Sealed."""

    answer: bytes = b""
    """To a form, sealed."""

    same_person: bool = False
    """Whether the console knows this person to be the owner under another name."""

    behind: bool = False
    """Whether the console knows this person to be one who stands behind the call."""

    mac: bytes = b""
    """Shows that a console with the keys of the server took the decision (`decision_digest`)."""


class DecisionRecord(msgspec.Struct, frozen=True):
    """One decision, as it is kept for ever. Never changed and never removed."""

    sequence: int
    server: str
    item: str
    call: str
    key: str
    tool: str
    issuer: str
    subject: str
    name: str
    roles: tuple[str, ...]
    decision: str
    how: str
    auth_time: float
    shown: float
    at: float
    digest: bytes
    note: bytes
    previous: bytes
    """Hash of the record before it."""

    hash: bytes
    arguments: bytes = b""
    """Digest of the arguments with which the call was made."""

    mac: bytes = b""
    """Of everything but its place in the chain, under a key that the database does not have."""


class Decided(msgspec.Struct, frozen=True):
    """The decision is kept."""

    status: Status
    """Of the item afterwards: still `open` when more people are needed."""

    record: DecisionRecord


class Changed(msgspec.Struct, frozen=True):
    """The question is not the one that was shown."""


class Closed(msgspec.Struct, frozen=True):
    """Nothing can be decided any more."""

    status: Status


class NotAllowed(msgspec.Struct, frozen=True):
    """This person may not decide this."""

    reason: Literal["unknown", "role", "own", "twice", "assurance", "choice"]


Verdict: TypeAlias = Decided | Changed | Closed | NotAllowed


def judge(
    item: Item | None, attempt: Attempt, said: Sequence[DecisionRecord], now: float
) -> Status | Changed | Closed | NotAllowed:
    """Return the status of the item after this decision, or what stands in its way.

    Args:
        item: As it is kept; None when there is none of this id.
        attempt: What the person wants.
        said: The decisions about this item so far.
        now: The store's clock.
    """
    if item is None:
        return NotAllowed("unknown")
    person = attempt.person
    forbidden = may_not_decide(
        item,
        person,
        is_owner=owns(item, person) or attempt.same_person,
        is_behind=stands_behind(item, person) or attempt.same_person or attempt.behind,
    )
    if forbidden is not None:
        return forbidden
    if item.status != "open":
        return Closed(item.status)
    if item.expires <= now:
        return Closed("expired")
    if item.digest != attempt.digest:
        return Changed()
    if has_decided(person, said):
        return NotAllowed("twice")
    if item.assurance == "fresh" and not now - FRESH <= person.auth_time:
        return NotAllowed("assurance")
    return _status_after(item, attempt, said)


def owns(item: Item, person: Person) -> bool:
    """Tell whether this person has made the call, by the exact name."""
    return bool(item.owner) and person.identity == item.owner


def stands_behind(item: Item, person: Person) -> bool:
    """Tell whether this person may be one of those behind the call; in doubt they are."""
    return may_be_one_of(person.identity, item.behind) or owns(item, person)


def has_decided(person: Person, said: Sequence[DecisionRecord]) -> bool:
    """Tell whether one of the decisions may be this person's."""
    return any(may_be_one(identity_of(one.issuer, one.subject), person.identity) for one in said)


def may_not_decide(
    item: Item, person: Person, *, is_owner: bool, is_behind: bool
) -> NotAllowed | None:
    """Return why this person may never decide this item; None if nothing forbids it."""
    if not item.role:
        return None if is_owner else NotAllowed("role")
    if item.role not in person.roles:
        return NotAllowed("role")
    return NotAllowed("own") if is_behind and not item.own else None


def _status_after(
    item: Item, attempt: Attempt, said: Sequence[DecisionRecord]
) -> Status | NotAllowed:
    if attempt.choice == "decline":
        return "declined"
    if (attempt.choice == "answer") != (item.kind == "form"):
        return NotAllowed("choice")
    if item.kind == "form":
        return "answered"
    approvals = 1 + sum(one.decision == "approve" for one in said)
    return "approved" if approvals >= item.need else "open"


def record_of(item: Item, attempt: Attempt, *, after: ChainHead, at: float) -> DecisionRecord:
    """Return the next record of the chain."""
    person = attempt.person
    record = DecisionRecord(
        sequence=0,
        server=item.server,
        item=item.id,
        call=item.call,
        key=item.key,
        tool=item.tool,
        issuer=person.issuer,
        subject=person.subject,
        name=person.name,
        roles=person.roles,
        decision=attempt.choice,
        how=attempt.how,
        auth_time=person.auth_time,
        shown=attempt.shown,
        at=at,
        digest=item.digest,
        note=attempt.note,
        previous=b"",
        hash=b"",
        arguments=item.arguments,
        mac=attempt.mac,
    )
    return linked(record, after)


def decision_place(item: str) -> str:
    """Name the place for which the decisions about an item are authenticated."""
    return f"decision {item}"


def decision_digest(item: Item, attempt: Attempt) -> bytes:
    """Return the digest of a decision that is about to be made."""
    return recorded_digest(record_of(item, attempt, after=NO_HEAD, at=0.0))


def recorded_digest(record: DecisionRecord) -> bytes:
    """Return the digest of what a person has said: all but the time and the place in the chain."""
    bare = msgspec.structs.replace(
        record, sequence=0, at=0.0, previous=b"", hash=b"", mac=b"", roles=tuple(record.roles)
    )
    return hashlib.sha256(msgspec.json.encode(bare, order="deterministic")).digest()


def terms_of(item: Item | NewItem) -> Terms:
    """Return the terms of an item as its columns have them."""
    return Terms(
        role=item.role,
        need=item.need,
        own=item.own,
        assurance=item.assurance,
        owner=item.owner,
        behind=item.behind,
        digest=item.digest,
    )


def outcome_by(
    terms: Terms, said: Sequence[DecisionRecord]
) -> Literal["approved", "declined"] | None:
    """Return what authenticated records amount to under the terms of their item; None: nothing yet.

    The status of the item is not asked: whoever writes the database can change it.
    """
    counted: list[str] = []
    for one in said:
        person = identity_of(one.issuer, one.subject)
        if one.digest != terms.digest or (terms.role and terms.role not in one.roles):
            continue
        if terms.role and not terms.own and may_be_one_of(person, terms.behind):
            continue
        if one.decision == "decline":
            return "declined"
        if one.decision == "approve" and not may_be_one_of(person, counted):
            counted.append(person)
    return "approved" if len(counted) >= terms.need else None


_face = msgspec.msgpack.Decoder(Face)


def encode_face(face: Face) -> bytes:
    """Write a face as bytes."""
    return msgspec.msgpack.encode(face)


def decode_face(data: bytes) -> Face:
    """Read a face."""
    return _face.decode(data)
