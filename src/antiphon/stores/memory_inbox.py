"""Inbox items, decisions, notices and sessions in the memory of one process.

Every method runs to its end without awaiting, so one event loop makes it atomic. Bounded: when
there are too many items or sessions, new ones are refused.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from antiphon.errors import StoreFull
from antiphon.ports import Clock, ItemFilter, NewTask, Notification, TaskChange
from antiphon.protocol.chain import NO_HEAD, ChainHead
from antiphon.protocol.inbox import (
    Attempt,
    Decided,
    DecisionRecord,
    Item,
    NewItem,
    NewNotice,
    Status,
    Verdict,
    judge,
    record_of,
)
from antiphon.stores.memory_tasks import OPEN, KeptTask, MemoryTasks

_SESSIONS = 10_000
_KEPT = 30 * 86_400.0
"""Seconds for which a closed item can still be looked at."""


class _Notice(msgspec.Struct):
    server: str
    item: str
    notice: NewNotice
    due: float
    tries: int = 0


class MemoryInbox(MemoryTasks):
    """The tasks of one process, and the inbox that goes with them."""

    def __init__(
        self, clock: Clock, *, ended: Callable[[str], None], tasks: int, task_bytes: int
    ) -> None:
        super().__init__(clock, ended=ended, tasks=tasks, task_bytes=task_bytes)
        self._most_items = tasks
        self._inbox: dict[str, Item] = {}
        self._items_by_call: dict[str, list[str]] = {}
        self._open_items: dict[str, dict[str, None]] = {}
        """Open items by task."""

        self._chains: dict[str, list[DecisionRecord]] = {}
        self._said: dict[str, list[DecisionRecord]] = {}
        self._held_calls: dict[tuple[str, str, str, bytes], NewTask] = {}
        self._held_names: dict[str, tuple[str, str, str, bytes]] = {}
        self._notices: dict[str, _Notice] = {}
        self._sessions: dict[bytes, tuple[float, bytes]] = {}

    # --- with tasks ------------------------------------------------------------------------------

    async def create_task(self, task: NewTask) -> bool:
        """Keep a new task; False when it is a held call and the same one waits already."""
        if task.held is not None and task.held.arguments:
            found = self._held_calls.get(self._held_name(task))
            if found is not None and self._now() < found.expires:
                return False
        self.add_task(task)
        return True

    def _held_name(self, task: NewTask) -> tuple[str, str, str, bytes]:
        assert task.held is not None
        return task.server, task.owner, task.tool, task.held.arguments

    def add_task(self, task: NewTask) -> None:
        """Keep a new task with its items, within an operation of the ledger."""
        held = task.held
        if held is None:
            super().add_task(task)
            return
        self._make_space(len(held.items))
        super().add_task(task)
        if held.arguments:
            name = self._held_name(task)
            found = self._held_calls.get(name)
            if found is None or found.expires <= self._now():
                if found is not None:
                    self._held_names.pop(found.id, None)
                self._held_calls[name] = task
                self._held_names[task.id] = name
        self._add_items(held.items)

    def _make_space(self, items: int) -> None:
        if len(self._inbox) + items > self._most_items:
            self._forget_old()
        if len(self._inbox) + items > self._most_items:
            raise StoreFull("the memory store is full: it holds as many inbox items as it may")

    def _forget_old(self) -> None:
        before = self._now() - _KEPT
        for item in [one for one in self._inbox.values() if (one.closed or before) < before]:
            del self._inbox[item.id]
            self._items_by_call[item.call].remove(item.id)
            if not self._items_by_call[item.call]:
                del self._items_by_call[item.call]

    def _apply(self, row: KeptTask, change: TaskChange, ready: float | None) -> None:
        self._make_space(len(change.items))
        super()._apply(row, change, ready)
        task = row.new.id
        for key in change.answered:
            self._withdraw(task, key)
        if change.status not in OPEN:
            self._withdraw(task)
        self._add_items(change.items)
        if change.lasts:
            self._keep_for(row, change.lasts)

    def _keep_for(self, row: KeptTask, seconds: float) -> None:
        """A task outlives what people may still decide about it."""
        until = self._now() + seconds
        if row.new.expires < until:
            row.new = msgspec.structs.replace(row.new, expires=until)
            name = self._held_names.get(row.new.id)
            if name is not None:
                self._held_calls[name] = row.new

    def _removed(self, task: str) -> None:
        for id in list(self._open_items.get(task, ())):
            self._close_item(id, "expired")
        name = self._held_names.pop(task, None)
        if name is not None and self._held_calls[name].id == task:
            del self._held_calls[name]

    def _withdraw(self, task: str, key: str | None = None) -> None:
        for id in list(self._open_items.get(task, ())):
            if key is None or self._inbox[id].key == key:
                self._close_item(id, "withdrawn")

    def _add_items(self, items: Iterable[NewItem]) -> None:
        for new in items:
            known = [self._inbox[id] for id in self._items_by_call.get(new.call, ())]
            if any((one.key, one.digest) == (new.key, new.digest) for one in known):
                continue  # a run that is repeated after its end was lost
            self._inbox[new.id] = _item_of(new, self._now())
            self._items_by_call.setdefault(new.call, []).append(new.id)
            self._open_items.setdefault(new.task, {})[new.id] = None
            self._add_notices(new.id, new.notices)

    def _close_item(self, id: str, status: Status, answer: bytes = b"") -> None:
        item = self._inbox[id]
        self._inbox[id] = msgspec.structs.replace(
            item, status=status, closed=self._now(), answer=answer
        )
        waiting = self._open_items[item.task]
        del waiting[id]
        if not waiting:
            del self._open_items[item.task]

    # --- items -----------------------------------------------------------------------------------

    async def item(self, id: str) -> Item | None:
        """Return an item, or None."""
        return self._inbox.get(id)

    async def items(
        self, wanted: ItemFilter, *, after: tuple[float, str] | None = None, limit: int = 50
    ) -> Sequence[Item]:
        """List items by age."""
        oldest_first = wanted.open is True
        found = sorted(
            (item for item in self._inbox.values() if self._fits(item, wanted)),
            key=lambda item: (item.created, item.id),
            reverse=not oldest_first,
        )
        if after is not None:
            found = [
                item
                for item in found
                if ((item.created, item.id) > after) == oldest_first
                and (item.created, item.id) != after
            ]
        return found[:limit]

    async def count_items(self, wanted: ItemFilter, *, most: int) -> int:
        """Count the items, but no further than `most`."""
        return min(most, sum(self._fits(item, wanted) for item in self._inbox.values()))

    def _fits(self, item: Item, wanted: ItemFilter) -> bool:
        if item.server != wanted.server:
            return False
        if wanted.open is not None and (item.status == "open") != wanted.open:
            return False
        if wanted.tool is not None and item.tool != wanted.tool:
            return False
        if wanted.decided_by is not None and not any(
            (one.issuer, one.subject) == wanted.decided_by for one in self._said.get(item.id, ())
        ):
            return False
        if wanted.roles is None:
            return wanted.owner is None or item.owner == wanted.owner
        if item.role:
            return item.role in wanted.roles
        return bool(wanted.owner) and item.owner == wanted.owner

    async def items_of(self, call: str) -> Sequence[tuple[Item, Sequence[DecisionRecord]]]:
        """Return the items of a call with their decisions; overdue ones become expired."""
        ids = self._items_by_call.get(call, ())
        for id in ids:
            item = self._inbox[id]
            if item.status == "open" and item.expires <= self._now():
                self._close_item(id, "expired")
        return [(self._inbox[id], tuple(self._said.get(id, ()))) for id in ids]

    async def decide(self, attempt: Attempt, *, notices: Sequence[NewNotice] = ()) -> Verdict:
        """Decide."""
        item, now = self._inbox.get(attempt.item), self._now()
        said = self._said.get(attempt.item, [])
        found = judge(item, attempt, said, now)
        if item is None or not isinstance(found, str):
            assert not isinstance(found, str)
            return found
        chain = self._chains.setdefault(item.server, [])
        head = ChainHead(len(chain), chain[-1].hash) if chain else NO_HEAD
        record = record_of(item, attempt, after=head, at=now)
        chain.append(record)
        self._said.setdefault(item.id, []).append(record)
        if found != "open":
            self._close_item(item.id, found, attempt.answer)
            self.wake_task(item.task)
            self._add_notices(item.id, notices)
        return Decided(found, record)

    async def withdraw(self, item: str, owner: str) -> bool:
        """Withdraw an open item of this owner."""
        found = self._inbox.get(item)
        if (
            found is None
            or not owner
            or found.owner != owner
            or found.status != "open"
            or found.expires <= self._now()
        ):
            return False
        self._close_item(item, "withdrawn")
        self.wake_task(found.task)
        return True

    async def decisions(
        self, server: str, *, after: int = 0, limit: int = 1000
    ) -> Sequence[DecisionRecord]:
        """Return the chain of a server's decisions."""
        return self._chains.get(server, [])[after : after + limit]

    # --- held calls ------------------------------------------------------------------------------

    async def held(self, server: str, owner: str, tool: str, arguments: bytes) -> str | None:
        """Return the task of the held call that a repeated call finds."""
        found = self._held_calls.get((server, owner, tool, arguments))
        return found.id if found is not None and self._now() < found.expires else None

    async def collect(self, task: str) -> bool:
        """Note that the result of a held call was handed out."""
        name = self._held_names.pop(task, None)
        if name is None or self._held_calls[name].id != task:
            return False
        del self._held_calls[name]
        return True

    # --- notices ---------------------------------------------------------------------------------

    def _add_notices(self, item: str, notices: Iterable[NewNotice]) -> None:
        for notice in notices:
            row = _Notice(self._inbox[item].server, item, notice, self._now() + notice.delay)
            self._notices.setdefault(notice.id, row)

    async def add_notices(self, item: str, notices: Sequence[NewNotice]) -> None:
        """Keep further notices of an item."""
        if item in self._inbox:
            self._add_notices(item, notices)

    async def due_notices(self, server: str, *, limit: int, lease: float) -> Sequence[Notification]:
        """Lease notices that are due."""
        now = self._now()
        due = [row for row in self._notices.values() if row.server == server and row.due <= now]
        found: list[Notification] = []
        for row in sorted(due, key=lambda one: one.due):
            item = self._inbox.get(row.item)
            if row.notice.kind == "reminded" and (item is None or item.status != "open"):
                del self._notices[row.notice.id]
            elif len(found) < limit:
                found.append(
                    Notification(
                        row.notice.id, row.item, row.notice.kind, row.notice.target, row.tries
                    )
                )
                row.due, row.tries = now + lease, row.tries + 1
        return found

    async def sent_notice(self, id: str, *, again: float | None = None) -> None:
        """Remove a notice, or make it due again."""
        if again is None:
            self._notices.pop(id, None)
        elif id in self._notices:
            self._notices[id].due = self._now() + again

    # --- sessions --------------------------------------------------------------------------------

    async def keep_session(self, id: bytes, data: bytes, *, ttl: float) -> None:
        """Keep a session under a hash of its secret."""
        now = self._now()
        if len(self._sessions) >= _SESSIONS:
            for old in [one for one, (until, _) in self._sessions.items() if until <= now]:
                del self._sessions[old]
        if len(self._sessions) >= _SESSIONS and id not in self._sessions:
            raise StoreFull("the memory store is full: too many people are signed in")
        self._sessions[id] = (now + ttl, data)

    async def session(self, id: bytes, *, ttl: float | None) -> bytes | None:
        """Return a session and extend its life, or leave it as it is."""
        until, data = self._sessions.get(id, (0.0, b""))
        if until <= self._now():
            return None
        if ttl is not None:
            self._sessions[id] = (self._now() + ttl, data)
        return data

    async def take_session(self, id: bytes) -> bytes | None:
        """Return and end a session."""
        until, data = self._sessions.pop(id, (0.0, b""))
        return data if self._now() < until else None


def _item_of(new: NewItem, now: float) -> Item:
    return Item(
        id=new.id,
        server=new.server,
        call=new.call,
        key=new.key,
        task=new.task,
        tool=new.tool,
        owner=new.owner,
        role=new.role,
        need=new.need,
        own=new.own,
        assurance=new.assurance,
        digest=new.digest,
        arguments=new.arguments,
        created=now,
        expires=now + new.within,
        closed=None,
        status="open",
        kind=new.kind,
        face=new.face,
        behind=new.behind,
    )
