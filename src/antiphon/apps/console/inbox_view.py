"""What a person may see and do in the inbox. No HTML and no HTTP.

A page shows what this module returns; what a person decides is judged by the store alone.
"""

import logging
from collections.abc import Sequence

import msgspec

from antiphon.console import AUDITOR, OPERATOR, Console
from antiphon.engine.environment import Environment
from antiphon.errors import StoreError, TokenRefused
from antiphon.ports import Inbox, ItemFilter
from antiphon.protocol.identities import read_identity
from antiphon.protocol.inbox import (
    FRESH,
    Attempt,
    Choice,
    Decided,
    DecisionRecord,
    Face,
    Item,
    NewNotice,
    NotAllowed,
    Person,
    Verdict,
    decision_digest,
    decision_place,
    decode_face,
    has_decided,
    may_not_decide,
    owns,
    stands_behind,
    terms_of,
)
from antiphon.protocol.request import Principal

log: logging.Logger = logging.getLogger("antiphon")

NOTE = 2_000
"""Characters of an approver's note."""

PAGE = 50
MOST = 100
"""Items on a page; and how far the headings count."""

VIEWS = ("for-me", "mine", "decided")


class Shown(msgspec.Struct, frozen=True):
    """An item as one person may see it."""

    item: Item
    face: Face | None
    """None when this person may see that the item exists, but not what it says."""

    said: Sequence[DecisionRecord] = ()
    may_decide: bool = False
    needs_fresh: bool = False
    """Whether the person must sign in again before deciding."""

    own: bool = False
    has_decided: bool = False
    behind: bool = False
    """Whether the person may be one of those behind the call."""


class Listing(msgspec.Struct, frozen=True):
    """Which part of the inbox a list shows."""

    view: str
    tool: str | None = None
    role: str | None = None
    after: tuple[float, str] | None = None


async def authenticated(environment: Environment, item: Item, attempt: Attempt) -> Attempt:
    """Return a decision that a run counts: with a MAC under a key that no database has."""
    digest = decision_digest(item, attempt)
    mac = await environment.authenticate(digest, decision_place(item.id))
    return msgspec.structs.replace(attempt, mac=mac)


class InboxView:
    """The inbox of one server, for whoever is signed in."""

    def __init__(self, environment: Environment, store: Inbox, console: Console) -> None:
        self._environment = environment
        self._store = store
        self._console = console
        self._server = environment.sealer.audience

    def _filter(self, person: Person, listing: Listing) -> ItemFilter:
        view, tool, role = listing.view, listing.tool, listing.role
        if view == "mine":
            return ItemFilter(self._server, owner=person.identity, tool=tool)
        if view == "decided":
            everybody = AUDITOR in person.roles
            by = None if everybody else (person.issuer, person.subject)
            return ItemFilter(self._server, open=False, decided_by=by, tool=tool)
        roles = person.roles if role is None else tuple(r for r in person.roles if r == role)
        owner = person.identity if role is None else None
        return ItemFilter(self._server, open=True, roles=roles, owner=owner, tool=tool)

    async def listed(self, person: Person, listing: Listing) -> list[Shown]:
        """Return a page of one of the three lists."""
        return [await self._shown(item, person) for item in await self._items(person, listing)]

    async def _items(self, person: Person, listing: Listing) -> Sequence[Item]:
        wanted = self._filter(person, listing)
        items = await self._store.items(wanted, after=listing.after, limit=PAGE)
        return [self._current(item) for item in items]

    def _current(self, item: Item) -> Item:
        """Return an item as it is now: one whose time is over may not be marked yet."""
        if item.status == "open" and self._environment.clock() >= item.expires:
            return msgspec.structs.replace(item, status="expired")
        return item

    async def waiting(self) -> Sequence[Item]:
        """Return what is open, the oldest first, whoever may see it."""
        return await self._store.items(ItemFilter(self._server, open=True), limit=PAGE)

    async def seal_face(self, id: str, face: bytes) -> bytes:
        """Seal what an item shows, as it is kept."""
        return await self._environment.protect(face, f"item {id}")

    async def counts(self, person: Person) -> dict[str, int]:
        """Count what waits for a person, and what of theirs waits; no further than a bound."""
        mine = ItemFilter(self._server, open=True, owner=person.identity)
        return {
            "for-me": await self._store.count_items(
                self._filter(person, Listing("for-me")), most=MOST
            ),
            "mine": await self._store.count_items(mine, most=MOST),
        }

    async def one(self, id: str, person: Person) -> Shown | None:
        """Return an item; None when this person may not know of it."""
        item = await self._store.item(id)
        if item is None or item.server != self._server:
            return None
        if not self._may_see(item, person):
            return None
        return await self._shown(self._current(item), person, with_decisions=True)

    def _is_owner(self, item: Item, person: Person) -> bool:
        if owns(item, person):
            return True
        return bool(item.owner) and self._is_told(person, item.owner)

    def _is_behind(self, item: Item, person: Person) -> bool:
        """Tell whether a person may be one of those behind a call: none of them approves it."""
        return stands_behind(item, person) or any(
            self._is_told(person, identity) for identity in (item.owner, *item.behind) if identity
        )

    def _is_told(self, person: Person, identity: str) -> bool:
        """Ask the author whether a person is a caller of another name."""
        same = self._console.same_person
        return same is not None and bool(same(person, Principal(*read_identity(identity))))

    def _may_see(self, item: Item, person: Person) -> bool:
        return (
            (bool(item.role) and item.role in person.roles)
            or self._is_owner(item, person)
            or AUDITOR in person.roles
            or OPERATOR in person.roles
        )

    def _may_read(self, item: Item, person: Person) -> bool:
        return (
            (bool(item.role) and item.role in person.roles)
            or self._is_owner(item, person)
            or AUDITOR in person.roles
        )

    async def _shown(self, item: Item, person: Person, *, with_decisions: bool = False) -> Shown:
        face = None
        if self._may_read(item, person):
            try:
                sealed = await self._environment.reveal(item.face, f"item {item.id}")
                face = decode_face(sealed)
                if face.terms != terms_of(item):
                    log.error("inbox item %s was changed in the store; nobody can decide", item.id)
                    face = None
            except TokenRefused:
                log.error("inbox item %s cannot be opened: is a key missing?", item.id)
        said: Sequence[DecisionRecord] = ()
        if with_decisions:
            said = next(
                (records for one, records in await self._store.items_of(item.call)
                 if one.id == item.id), (),
            )  # fmt: skip
        now = self._environment.clock()
        owner, behind = self._is_owner(item, person), self._is_behind(item, person)
        decided = has_decided(person, said)
        may = (
            face is not None
            and item.status == "open"
            and not decided
            and may_not_decide(item, person, is_owner=owner, is_behind=behind) is None
        )
        stale = item.assurance == "fresh" and person.auth_time < now - FRESH
        return Shown(item, face, said, may, may and stale, owner, decided, behind)

    async def decide(
        self,
        shown: Shown,
        person: Person,
        choice: Choice,
        *,
        digest: bytes,
        first_shown: float,
        note: str = "",
        answer: bytes = b"",
    ) -> Verdict:
        """Decide as this person; every rule is judged by the store."""
        item, environment = shown.item, self._environment
        if shown.face is None:
            return NotAllowed("unknown")
        sealed_note = b""
        if note:
            sealed_note = await environment.protect(note[:NOTE].encode(), f"note {item.id}")
        sealed_answer = b""
        if answer:
            sealed_answer = await environment.protect(answer, f"answer {item.id}")
        now = environment.clock()
        fresh = person.auth_time >= now - FRESH
        attempt = Attempt(
            item=item.id,
            person=person,
            choice=choice,
            digest=digest,
            how="fresh" if fresh and item.assurance == "fresh" else "signed-in",
            shown=first_shown,
            note=sealed_note,
            answer=sealed_answer,
            same_person=shown.own,
            behind=shown.behind,
        )
        attempt = await authenticated(environment, item, attempt)
        verdict = await self._store.decide(attempt, notices=self._notices("decided"))
        if isinstance(verdict, Decided):
            log.info("inbox item %s of %s: %s", item.id, item.tool, verdict.status)
            await self._note(item, person, choice, verdict.status)
        else:
            log.warning("inbox item %s of %s: not decided (%r)", item.id, item.tool, verdict)
        return verdict

    async def _note(self, item: Item, person: Person, choice: Choice, status: str) -> None:
        """Write a decision to the audit; it counts already, and has a record of its own."""
        audit = self._environment.audit
        if audit is None:
            return
        try:
            await audit.decided(
                call=item.call,
                task=item.task,
                target=item.tool,
                key=item.key,
                issuer=person.issuer,
                subject=person.subject,
                choice=choice,
                status=status,
                digest=item.digest,
            )
        except StoreError as error:
            log.error("the audit has no record of the decision about %s: %s", item.id, error)

    async def withdraw(self, shown: Shown, person: Person) -> bool:
        """Withdraw an item of this person."""
        if not shown.own:
            return False
        return await self._store.withdraw(shown.item.id, shown.item.owner)

    def _notices(self, kind: str) -> tuple[NewNotice, ...]:
        entropy = self._environment.entropy
        return tuple(
            NewNotice(entropy(16).hex(), kind, target.name)  # pyright: ignore[reportArgumentType]
            for target in self._console.notify
        )

    async def note(self, shown: Shown, record: DecisionRecord) -> str:
        """Return the note of a decision, for whoever may read the item; empty without one."""
        if not record.note or shown.face is None:
            return ""
        try:
            return (await self._environment.reveal(record.note, f"note {shown.item.id}")).decode()
        except TokenRefused:
            return ""

    async def version(self, person: Person, listing: Listing) -> str:
        """Return a text that changes when what a list shows this person has changed."""
        items = await self._items(person, listing)
        return " ".join(f"{item.id}:{item.status}" for item in items)

    async def item_version(self, person: Person, id: str) -> str:
        """Return a text that changes when what this person sees of an item has changed."""
        shown = await self.one(id, person)
        return "" if shown is None else f"{shown.item.status} {len(shown.said)}"
