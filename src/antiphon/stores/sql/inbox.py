"""Inbox items, decisions and held calls over SQL: each method is one transaction.

Who may decide is judged by `antiphon.protocol.inbox`; here the rows are read under a lock and the
verdict is written down. There is no statement that changes or removes a decision. Does no I/O.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from antiphon.ports import HeldCall, ItemFilter, NewTask
from antiphon.protocol.chain import START, ChainHead
from antiphon.protocol.inbox import (
    Attempt,
    Decided,
    DecisionRecord,
    Item,
    NewItem,
    NewNotice,
    Verdict,
    judge,
    record_of,
)
from antiphon.stores.sql.dialect import (
    READY,
    Dialect,
    OfEveryServer,
    Query,
    Rows,
    Runs,
    Transaction,
    Written,
    notices,
    reading,
    single_statement,
    transaction,
)
from antiphon.stores.sql.notices import SWEEP_SESSIONS, add_notices
from antiphon.stores.sql.schema import OPEN

_ITEM = """
id, server, call, key, task, tool, owner, role, need, own, assurance, digest, arguments, created,
expires, closed, status, kind, face, answer, behind
"""

_RECORD = """
sequence, server, item, call, key, tool, issuer, subject, name, roles, decision, how, auth_time,
shown, at, digest, note, previous, hash, arguments, mac
"""

ADD_ITEM = """
INSERT INTO antiphon_inbox (id, server, call, key, task, tool, owner, role, need, own, assurance,
       digest, arguments, created, expires, until, closed, status, kind, face, answer, behind)
VALUES (:id, :server, :call, :key, :task, :tool, :owner, :role, :need, :own, :assurance,
       CAST(:digest AS {blob}), CAST(:arguments AS {blob}), {now},
       {now} + CAST(:within AS double precision),
       {now} + CAST(:within AS double precision) + :kept, NULL, 'open', :kind,
       CAST(:face AS {blob}), CAST('' AS {blob}), :behind)
    ON CONFLICT (server, call, key, digest) DO NOTHING
"""
"""A run that is repeated after its end was lost puts the same item again."""

ITEM = f"SELECT {_ITEM} FROM antiphon_inbox WHERE server = :server AND id = :id"  # noqa: S608
ITEM_LOCKED = f"{ITEM} {{lock}}"
ITEMS_OF = f"""
SELECT {_ITEM} FROM antiphon_inbox WHERE server = :server AND call = :call
"""  # noqa: S608
"""In no order: for an order SQLite would take its index, and read every item of the server."""

SAID = f"""
SELECT {_RECORD} FROM antiphon_decisions WHERE server = :server AND item = :id
"""  # noqa: S608
SAID_OF = f"""
SELECT {_RECORD} FROM antiphon_decisions WHERE server = :server AND call = :call
"""  # noqa: S608
CHAIN = f"""
SELECT {_RECORD} FROM antiphon_decisions WHERE server = :server AND sequence > :after
 ORDER BY sequence LIMIT :limit
"""  # noqa: S608
LAST = """
SELECT sequence, hash FROM antiphon_decisions WHERE server = :server
 ORDER BY sequence DESC LIMIT 1
"""
TIME = "SELECT {now}"

ADD_RECORD = f"""
INSERT INTO antiphon_decisions ({_RECORD})
VALUES (:sequence, :server, :item, :call, :key, :tool, :issuer, :subject, :name, :roles, :decision,
        :how, :auth_time, :shown, :at, CAST(:digest AS {{blob}}), CAST(:note AS {{blob}}),
        CAST(:previous AS {{blob}}), CAST(:hash AS {{blob}}), CAST(:arguments AS {{blob}}),
        CAST(:mac AS {{blob}}))
"""  # noqa: S608

CLOSE = """
UPDATE antiphon_inbox
   SET status = :status, closed = {now}, answer = CAST(:answer AS {blob})
 WHERE server = :server AND id = :id AND status = 'open'
RETURNING task
"""

EXPIRE = """
UPDATE antiphon_inbox SET status = 'expired', closed = {now}
 WHERE server = :server AND call = :call AND status = 'open' AND expires <= {now}
"""

WITHDRAW = """
UPDATE antiphon_inbox SET status = 'withdrawn', closed = {now}
 WHERE server = :server AND id = :id AND owner = :owner AND owner <> '' AND status = 'open'
   AND expires > {now}
RETURNING task
"""

WITHDRAW_KEYS = """
UPDATE antiphon_inbox SET status = 'withdrawn', closed = {now}
 WHERE server = :server AND task = :task AND status = 'open' AND key IN ({listed})
"""

WITHDRAW_TASK = """
UPDATE antiphon_inbox SET status = 'withdrawn', closed = {now}
 WHERE server = :server AND task = :task AND status = 'open'
"""
"""The task has ended: nobody waits for the answer."""

EXPIRE_TASKS = """
UPDATE antiphon_inbox SET status = 'expired', closed = {now}
 WHERE server = :server AND task IN ({listed}) AND status = 'open'
"""
"""The tasks are removed: whatever is decided, nothing runs any more."""

KEEP_TASK = """
UPDATE antiphon_tasks SET expires = {now} + CAST(:lasts AS double precision)
 WHERE server = :server AND id = :task AND expires < {now} + CAST(:lasts AS double precision)
"""
KEEP_HELD = """
UPDATE antiphon_held SET expires = {now} + CAST(:lasts AS double precision)
 WHERE server = :server AND task = :task AND expires < {now} + CAST(:lasts AS double precision)
"""
"""A task outlives what people may still decide about it, and so does the name of a held call."""

WAKE_TASK = f"""
UPDATE antiphon_tasks
   SET revision = revision + 1, ready = CASE WHEN lease > {{now}} THEN ready ELSE {{now}} END
 WHERE server = :server AND id = :task AND {OPEN}
RETURNING {READY}
"""  # noqa: S608

# --- held calls --------------------------------------------------------------------------------

HOLD = """
INSERT INTO antiphon_held (server, owner, tool, arguments, task, expires)
VALUES (:server, :owner, :tool, CAST(:held_arguments AS {blob}), :task, :until)
    ON CONFLICT (server, owner, tool, arguments) DO UPDATE
   SET task = excluded.task, expires = excluded.expires
 WHERE antiphon_held.expires <= {now}
RETURNING task
"""

HELD = """
SELECT task FROM antiphon_held
 WHERE server = :server AND owner = :owner AND tool = :tool
   AND arguments = CAST(:held_arguments AS {blob}) AND expires > {now}
"""

IS_HELD = "SELECT 1 FROM antiphon_held WHERE server = :server AND task = :task"

COLLECT = "DELETE FROM antiphon_held WHERE server = :server AND task = :task RETURNING task"

# --- expiry ------------------------------------------------------------------------------------

SWEEP_ITEMS = OfEveryServer("""
DELETE FROM antiphon_inbox WHERE (server, id) IN (
    SELECT server, id FROM antiphon_inbox WHERE until < {moment} - :grace AND status <> 'open'
     ORDER BY until LIMIT :limit {skip_locked})
RETURNING 1
""")
SWEEP_HELD = OfEveryServer("""
DELETE FROM antiphon_held WHERE (server, task) IN (
    SELECT server, task FROM antiphon_held WHERE expires < {moment} - :grace
     ORDER BY expires LIMIT :limit {skip_locked})
RETURNING 1
""")
SWEEPS = (SWEEP_ITEMS, SWEEP_HELD, SWEEP_SESSIONS)

KEPT = 30 * 86_400.0
"""Seconds for which a closed item can still be looked at. Decisions stay."""


def add_items(sql: Written, items: Iterable[NewItem]) -> Transaction[None]:
    """Keep new items and their notices, within a transaction about their task."""
    for item in items:
        yield Query(
            sql[ADD_ITEM],
            {
                "id": item.id,
                "server": item.server,
                "call": item.call,
                "key": item.key,
                "task": item.task,
                "tool": item.tool,
                "owner": item.owner,
                "role": item.role,
                "need": item.need,
                "own": int(item.own),
                "assurance": item.assurance,
                "digest": item.digest,
                "arguments": item.arguments,
                "within": item.within,
                "kept": KEPT,
                "kind": item.kind,
                "face": item.face,
                "behind": json.dumps(item.behind),
            },
        )
        yield from add_notices(sql, item.id, item.notices)


def keep_task(sql: Written, task: str, lasts: float) -> Transaction[None]:
    """Keep a task for at least so many seconds, within a transaction about it."""
    for statement in (KEEP_TASK, KEEP_HELD):
        yield Query(sql[statement], {"task": task, "lasts": lasts})


def hold(sql: Written, task: NewTask, held: HeldCall) -> Transaction[bool]:
    """Note under which arguments a held call is found; False when another one waits there."""
    if not held.arguments:
        return True
    rows = yield Query(
        sql[HOLD],
        {
            "server": task.server,
            "owner": task.owner,
            "tool": task.tool,
            "held_arguments": held.arguments,
            "task": task.id,
            "until": task.expires,
        },
    )
    return bool(rows)


class SqlInbox(Runs):
    """The inbox in a database."""

    _sql: Written
    _dialect: Dialect

    @reading
    def item(self, id: str) -> Transaction[Item | None]:
        """Return an item, or None."""
        if not is_name(id):
            return None
        rows = yield Query(self._sql[ITEM], {"id": id})
        return _item(rows[0]) if rows else None

    @reading
    def items(
        self, wanted: ItemFilter, *, after: tuple[float, str] | None = None, limit: int = 50
    ) -> Transaction[Sequence[Item]]:
        """List items by age."""
        found: dict[str, Item] = {}
        oldest_first = wanted.open is True
        for where, parameters in _selections(wanted):
            order = "created, id" if oldest_first else "created DESC, id DESC"
            if after is not None:
                where = f"{where} AND (created, id) {'>' if oldest_first else '<'} (:at, :after)"
                parameters |= {"at": after[0], "after": after[1]}
            text = f"SELECT {_ITEM} FROM antiphon_inbox WHERE {where} ORDER BY {order} LIMIT :limit"  # noqa: S608
            rows = yield Query(self._sql[text], {**parameters, "limit": limit})
            found |= {row[0]: _item(row) for row in rows}
        listed = sorted(
            found.values(), key=lambda one: (one.created, one.id), reverse=not oldest_first
        )
        return listed[:limit]

    @reading
    def count_items(self, wanted: ItemFilter, *, most: int) -> Transaction[int]:
        """Count the items, but no further than `most`."""
        found: set[str] = set()
        for where, parameters in _selections(wanted):
            text = f"SELECT id FROM antiphon_inbox WHERE {where} LIMIT :limit"  # noqa: S608
            rows = yield Query(self._sql[text], {**parameters, "limit": most})
            found.update(row[0] for row in rows)
        return min(len(found), most)

    @transaction
    def items_of(self, call: str) -> Transaction[Sequence[tuple[Item, Sequence[DecisionRecord]]]]:
        """Return the items of a call with their decisions; overdue ones become expired."""
        yield Query(self._sql[EXPIRE], {"call": call})
        items = yield Query(self._sql[ITEMS_OF], {"call": call})
        records = yield Query(self._sql[SAID_OF], {"call": call})
        said = _in_order(records)
        found = sorted(map(_item, items), key=lambda item: (item.created, item.id))
        return [(item, [one for one in said if one.item == item.id]) for item in found]

    @transaction
    def decide(
        self, attempt: Attempt, *, notices: Sequence[NewNotice] = ()
    ) -> Transaction[Verdict]:
        """Decide under the lock of the item."""
        id = attempt.item if is_name(attempt.item) else ""
        rows = yield Query(self._sql[ITEM_LOCKED], {"id": id})
        item = _item(rows[0]) if rows else None
        said = yield Query(self._sql[SAID], {"id": id})
        ((now,),) = yield Query(self._sql[TIME], {})
        found = judge(item, attempt, _in_order(said), now)
        if item is None or not isinstance(found, str):
            assert not isinstance(found, str)
            return found
        record = yield from self._add_record(item, attempt, now)
        if found != "open":
            yield from self._close(item, found, attempt.answer)
            yield from add_notices(self._sql, item.id, notices)
        return Decided(found, record)

    def _add_record(self, item: Item, attempt: Attempt, now: float) -> Transaction[DecisionRecord]:
        """Add to the chain of the server, one at a time."""
        if self._dialect.lock_owner:
            yield Query(
                self._sql[self._dialect.lock_owner], {"owner": f"decisions of {item.server}"}
            )
        rows = yield Query(self._sql[LAST], {"server": item.server})
        last, previous = rows[0] if rows else (0, START)
        record = record_of(item, attempt, after=ChainHead(last, bytes(previous)), at=now)
        yield Query(self._sql[ADD_RECORD], _recorded(record))
        return record

    def _close(self, item: Item, status: str, answer: bytes) -> Transaction[None]:
        yield Query(self._sql[CLOSE], {"id": item.id, "status": status, "answer": answer})
        yield from self._wake(item.task)

    def _wake(self, task: str) -> Transaction[None]:
        rows = yield Query(self._sql[WAKE_TASK], {"task": task})
        yield from notices(rows)

    @transaction
    def withdraw(self, item: str, owner: str) -> Transaction[bool]:
        """Withdraw an open item of this owner."""
        if not is_name(item):
            return False
        rows = yield Query(self._sql[WITHDRAW], {"id": item, "owner": owner})
        for (task,) in rows:
            yield from self._wake(task)
        return bool(rows)

    @reading
    def decisions(
        self, server: str, *, after: int = 0, limit: int = 1000
    ) -> Transaction[Sequence[DecisionRecord]]:
        """Return the chain of a server's decisions."""
        rows = yield Query(self._sql[CHAIN], {"server": server, "after": after, "limit": limit})
        return [_record(row) for row in rows]

    # --- held calls ------------------------------------------------------------------------------

    @reading
    def held(self, server: str, owner: str, tool: str, arguments: bytes) -> Transaction[str | None]:
        """Return the task of the held call that a repeated call finds."""
        rows = yield Query(
            self._sql[HELD],
            {"server": server, "owner": owner, "tool": tool, "held_arguments": arguments},
        )
        return rows[0][0] if rows else None

    async def collect(self, task: str) -> bool:
        """Note that the result of a held call was handed out."""
        return await self._is_held(task) and await self._collect(task)

    @reading
    def _is_held(self, task: str) -> Transaction[bool]:
        """Look first: most tasks were never held, and looking at one writes nothing."""
        return bool((yield Query(self._sql[IS_HELD], {"task": task})))

    @single_statement
    def _collect(self, task: str) -> Transaction[bool]:
        return bool((yield Query(self._sql[COLLECT], {"task": task})))


def _selections(wanted: ItemFilter) -> list[tuple[str, dict[str, Any]]]:
    """Return one condition for each index that must be read: one for each role, one for owners."""
    where: list[str] = ["server = :server"]
    parameters: dict[str, Any] = {"server": wanted.server}
    if wanted.open is not None:
        # Said so that an index over open items can be used; the others are few beside them.
        where.append("status = 'open'" if wanted.open else "status <> 'open'")
    if wanted.tool is not None:
        where.append("tool = :tool")
        parameters["tool"] = wanted.tool
    if wanted.decided_by is not None:
        where.append(
            "id IN (SELECT item FROM antiphon_decisions "
            "WHERE server = :server AND issuer = :issuer AND subject = :subject)"
        )
        parameters |= {"issuer": wanted.decided_by[0], "subject": wanted.decided_by[1]}
    if wanted.roles is None:
        if wanted.owner is not None:
            where.append("owner = :owner")
            parameters["owner"] = wanted.owner
        return [(" AND ".join(where), parameters)]
    selections = [
        (" AND ".join([*where, "role = :role"]), {**parameters, "role": role})
        for role in dict.fromkeys(wanted.roles)
        if role
    ]
    if wanted.owner:
        own = " AND ".join([*where, "role = ''", "owner = :owner"])
        selections.append((own, {**parameters, "owner": wanted.owner}))
    return selections


def is_name(id: str) -> bool:
    """Tell whether a row may have this id: PostgreSQL takes no NUL in a text."""
    return "\0" not in id and id.isprintable()


def _item(row: Sequence[Any]) -> Item:
    values = list(row)
    values[9] = bool(values[9])
    for place in (11, 12, 18, 19):
        values[place] = bytes(values[place])
    values[20] = tuple(json.loads(values[20]))
    return Item(*values)


def _record(row: Sequence[Any]) -> DecisionRecord:
    values = list(row)
    values[9] = tuple(json.loads(values[9]))
    for place in (15, 16, 17, 18, 19, 20):
        values[place] = bytes(values[place] or b"")
    return DecisionRecord(*values)


def _in_order(rows: Rows) -> list[DecisionRecord]:
    return sorted(map(_record, rows), key=lambda record: record.sequence)


def _recorded(record: DecisionRecord) -> dict[str, Any]:
    return {**msgspec.structs.asdict(record), "roles": json.dumps(record.roles)}
