"""The inbox: questions to people who are not the client, their decisions, and notices."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from antiphon.protocol.inbox import Attempt, DecisionRecord, Item, NewItem, NewNotice, Verdict


class HeldCall(msgspec.Struct, frozen=True):
    """What a task that waits for a decision brings with it."""

    items: tuple[NewItem, ...]
    ready: float
    """Seconds after which it is run although nobody has decided."""

    arguments: bytes = b""
    """Under which a repeated call of the same owner and tool finds it; empty: under none."""


class ItemFilter(msgspec.Struct, frozen=True):
    """Which items to list. All members that are set must fit."""

    server: str
    open: bool | None = None
    roles: tuple[str, ...] | None = None
    """Items of these roles, and those that only `owner` may decide."""

    owner: str | None = None
    decided_by: tuple[str, str] | None = None
    """Issuer and subject of somebody who has decided."""

    tool: str | None = None


class Notification(msgspec.Struct, frozen=True):
    """A notice that is due, leased to whoever sends it."""

    id: str
    item: str
    kind: str
    target: str
    tries: int
    """How often it was sent before without success."""


@runtime_checkable
class Inbox(Protocol):
    """Items, decisions, notices and sessions, for stores that keep tasks.

    Items come into being with their task (`create_task`, `record`) or at the end of a run
    (`finish_run`), in the same step. An item that is open when its task ends is withdrawn with it.
    There is no way to change or remove a decision.
    """

    async def item(self, id: str) -> Item | None:
        """Return an item, or None."""
        ...

    async def items(
        self, wanted: ItemFilter, *, after: tuple[float, str] | None = None, limit: int = 50
    ) -> Sequence[Item]:
        """List items by age: open ones oldest first, others newest first.

        `after` is the creation time and the id of the last item of the page before.
        """
        ...

    async def count_items(self, wanted: ItemFilter, *, most: int) -> int:
        """Count the items, but no further than `most`."""
        ...

    async def items_of(self, call: str) -> Sequence[tuple[Item, Sequence[DecisionRecord]]]:
        """Return the items of a call with their decisions, oldest first.

        In the same step, those that are open and whose time is over become `expired`.
        """
        ...

    async def decide(self, attempt: Attempt, *, notices: Sequence[NewNotice] = ()) -> Verdict:
        """Decide, as `antiphon.protocol.inbox.judge` says: the only way in.

        A decision that closes the item makes its task ready and keeps the notices, in the same
        step.
        """
        ...

    async def withdraw(self, item: str, owner: str) -> bool:
        """Withdraw an open item of this owner and make its task ready; False if there is none."""
        ...

    async def decisions(
        self, server: str, *, after: int = 0, limit: int = 1000
    ) -> Sequence[DecisionRecord]:
        """Return the chain of a server's decisions after this sequence number."""
        ...

    async def held(self, server: str, owner: str, tool: str, arguments: bytes) -> str | None:
        """Return the task of the held call that a repeated call finds; None if there is none."""
        ...

    async def collect(self, task: str) -> bool:
        """Note that the result of a held call was handed out; False if it was before.

        No repeated call finds it from then on.
        """
        ...

    async def due_notices(self, server: str, *, limit: int, lease: float) -> Sequence[Notification]:
        """Lease notices that are due. Reminders of items that are closed are dropped."""
        ...

    async def sent_notice(self, id: str, *, again: float | None = None) -> None:
        """Remove a notice that was sent, or make it due again in `again` seconds."""
        ...

    async def add_notices(self, item: str, notices: Sequence[NewNotice]) -> None:
        """Keep further notices of an item; those that are kept already stay as they are."""
        ...

    async def keep_session(self, id: bytes, data: bytes, *, ttl: float) -> None:
        """Keep a session, or a one-time link, under a hash of its secret; `data` is sealed."""
        ...

    async def session(self, id: bytes, *, ttl: float | None) -> bytes | None:
        """Return a session and extend its life, or not without `ttl`; None when it is gone."""
        ...

    async def take_session(self, id: bytes) -> bytes | None:
        """Return and end a session; one of several callers gets it."""
        ...
