"""A task as a client sees it: its handle, and what `tasks/get` and notifications show. Pure.

Owns the reading and the pace; what is wrong is said in words, and the flow decides what that means.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args
from zlib import crc32

from antiphon.client.read_asks import JsonObject, PendingAsk, read_asks
from antiphon.core.digest import canonical, short_digest
from antiphon.core.methods import TASK_METHODS

Status: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]
STATUSES: frozenset[str] = frozenset(get_args(Status))

GET = "tasks/get"
UPDATE = "tasks/update"
CANCEL = "tasks/cancel"
METHODS = TASK_METHODS

MAX_ID = 1024
"""Characters of a task's id; it travels in a header."""

FIRST_POLL, LAST_POLL = 0.5, 5.0
"""Seconds between two looks where the server names no interval: longer and longer."""

LEAST_POLL = 0.05
"""A server may allow more; a tight loop helps nobody."""

JITTER = 0.1
"""The part of an interval by which a wait is lengthened, so that many clients fall out of step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A call that the server finishes in the background."""

    id: str
    """As good as a password for the task where the server knows no callers: keep it so."""

    status: Status = "working"
    message: str = ""
    """What the server says of it; to show."""

    created: str = ""
    updated: str = ""
    ttl: float | None = None
    """Seconds from its creation until the server may forget it."""

    poll: float | None = None
    """Seconds that the server wants between two looks."""

    def interval(self, looks: int) -> float:
        """Tell how long to wait before the next look: never less than the server wants.

        The jitter is drawn from the id, so that nothing here needs chance.
        """
        own = min(LAST_POLL, FIRST_POLL * 1.5 ** min(looks, 16))
        seconds = max(LEAST_POLL, own if self.poll is None else self.poll)
        return seconds * (1 + JITTER * crc32(f"{self.id} {looks}".encode()) / 2**32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A task and what its status brings along."""

    task: Task
    asks: tuple[PendingAsk, ...] = ()
    result: JsonObject | None = None
    error: JsonObject | None = None


def read_task(body: JsonObject) -> Task | str:
    """Read the members that every task has, or say what is wrong with them."""
    id, status = body.get("taskId"), body.get("status")
    if not isinstance(id, str) or not 0 < len(id) <= MAX_ID:
        return "its taskId is not a name"
    if not isinstance(status, str) or status not in STATUSES:
        return "its status is not one of a task"
    ttl, poll = body.get("ttlMs"), body.get("pollIntervalMs")
    if ttl is not None and not _counts(ttl):
        return "its ttlMs is not a number of milliseconds"
    if poll is not None and not _counts(poll):
        return "its pollIntervalMs is not a number of milliseconds"
    return Task(
        id=id,
        status=cast("Status", status),
        message=_text(body.get("statusMessage")),
        created=_text(body.get("createdAt")),
        updated=_text(body.get("lastUpdatedAt")),
        ttl=None if ttl is None else ttl / 1000,
        poll=None if poll is None else poll / 1000,
    )


def read_snapshot(body: object, id: str) -> Snapshot | str:
    """Read what the server shows of the task with this id, or say what is wrong (TASK-20)."""
    if not isinstance(body, dict):
        return "the task is not an object"
    body = cast("dict[str, Any]", body)
    if body.get("resultType", "complete") != "complete":
        return "the resultType of a task that is shown is not complete"
    task = read_task(body)
    if isinstance(task, str):
        return task
    if task.id != id:
        return "it shows another task than the one asked for"
    match task.status:
        case "input_required":
            asks = read_asks(body.get("inputRequests"))
            return asks if isinstance(asks, str) else Snapshot(task=task, asks=asks)
        case "completed":
            result = _object(body.get("result"))
            if result is None or result.get("resultType", "complete") != "complete":
                return "the completed task has no result"
            return Snapshot(task=task, result=result)
        case "failed":
            error = _object(body.get("error"))
            if error is None or not _whole(error.get("code")):
                return "the failed task has no error"
            return Snapshot(task=task, error=error)
        case _:
            return Snapshot(task=task)


def ask_digest(ask: PendingAsk) -> str:
    """Name what was asked: a key means one thing for the whole life of its task (TASK-42)."""
    return short_digest(ask.method.encode(), canonical(dict(ask.params))).hex()


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _counts(value: object) -> bool:
    return _whole(value) and cast("int", value) >= 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _object(value: object) -> JsonObject | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
