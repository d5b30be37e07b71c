"""What a server asks, and how a task stands, read from its messages and checked.

Faults are returned as text; the flow decides what they mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast, get_args
from zlib import crc32

from antiphon.protocol.capabilities import Capabilities, Capability, missing
from antiphon.protocol.digest import canonical, short_digest
from antiphon.protocol.methods import MAY_ASK

JsonObject: TypeAlias = Mapping[str, Any]

ASKABLE = MAY_ASK
"""The only methods that may be answered with a question (MRTR-S-01, MRTR-S-02)."""

MAX_ASKS = 64
"""Asks at one time; a bound against a hostile server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAsk:
    """One question of the server, as it was sent."""

    key: str
    method: str
    params: JsonObject = field(default_factory=dict[str, Any])

    @property
    def needs(self) -> list[Capability]:
        """The client capabilities that this ask needs (CAP-01)."""
        if self.method == "roots/list":
            return ["roots"]
        if self.method == "elicitation/create":
            return ["url" if self.params.get("mode") == "url" else "form"]
        tools = "tools" in self.params or "toolChoice" in self.params
        return ["sampling", "sampling.tools"] if tools else ["sampling"]


def read_input_required(
    body: JsonObject, method: str, declared: Capabilities
) -> tuple[str | None, tuple[PendingAsk, ...]] | str:
    """Return the token and the asks of an `input_required` result, or its fault (MRTR-C-14)."""
    if method not in ASKABLE:
        return f"{method} may not be answered with a question"
    token = body.get("requestState")
    if "requestState" in body and not isinstance(token, str):
        return "its requestState is not a string"
    asks = read_asks(body.get("inputRequests", {}))
    if isinstance(asks, str):
        return asks
    if not asks and token is None:
        return "it asks for nothing and gives no requestState"
    for ask in asks:
        if lacking := missing(declared, ask.needs):
            names = ", ".join(lacking)
            return f"ask {ask.key[:64]!r} needs {names}, which this client did not declare"
    return token, asks


def read_asks(entries: object) -> tuple[PendingAsk, ...] | str:
    """Return the asks of an `inputRequests` map, or its fault."""
    if not isinstance(entries, dict):
        return "its inputRequests is not an object"
    entries = cast("dict[str, Any]", entries)
    if len(entries) > MAX_ASKS:
        return f"it asks {len(entries)} things at once, more than {MAX_ASKS}"
    asks: list[PendingAsk] = []
    for key, entry in entries.items():
        ask = read_ask(key, entry)
        if isinstance(ask, str):
            return f"ask {key[:64]!r} {ask}"
        asks.append(ask)
    return tuple(asks)


def read_ask(key: str, entry: object) -> PendingAsk | str:
    """Return one ask of `inputRequests`, or its fault."""
    if not isinstance(entry, dict):
        return "is not an object"
    body = cast("dict[str, Any]", entry)
    method, params = body.get("method"), body.get("params")
    if params is None and method == "roots/list":
        params = {}
    if not isinstance(params, dict):
        return "has no params"
    params = cast("dict[str, Any]", params)
    match method:
        case "roots/list":
            fault = None
        case "elicitation/create":
            fault = _elicit_fault(params)
        case "sampling/createMessage":
            fault = _sample_fault(params)
        case _:
            return "is of an unknown kind"
    return fault or PendingAsk(key=key, method=cast("str", method), params=params)


def _elicit_fault(params: JsonObject) -> str | None:
    if not isinstance(params.get("message"), str):
        return "has no message"
    mode = params.get("mode", "form")
    if mode == "url":
        return None if isinstance(params.get("url"), str) else "has no url"
    if mode != "form":
        return "has an unknown mode"
    return None if isinstance(params.get("requestedSchema"), dict) else "has no requestedSchema"


def _sample_fault(params: JsonObject) -> str | None:
    if not isinstance(params.get("messages"), list):
        return "has no messages"
    tokens = params.get("maxTokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        return "has no maxTokens"
    return None


# --- tasks -------------------------------------------------------------------------------------

TaskStatus: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]
STATUSES: frozenset[str] = frozenset(get_args(TaskStatus))

GET = "tasks/get"
UPDATE = "tasks/update"
CANCEL = "tasks/cancel"

MAX_ID = 1024
"""Characters of a task's id; it is sent in a header."""

FIRST_POLL, LAST_POLL = 0.5, 5.0
"""Seconds between two polls where the server names no interval; it grows between these."""

LEAST_POLL = 0.05
"""The shortest interval, even if the server allows less."""

JITTER = 0.1
"""The part of an interval by which it is lengthened, to spread the polls of many clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A call that the server finishes in the background."""

    id: str
    """Where the server does not authenticate callers, the id alone gives access to the task."""

    status: TaskStatus = "working"
    message: str = ""
    """The server's text about its state, to show."""

    created: str = ""
    updated: str = ""
    ttl: float | None = None
    """Time to live: seconds from its creation until the server may delete it."""

    poll: float | None = None
    """The poll interval that the server wants, in seconds."""

    def interval(self, polls: int) -> float:
        """Return the seconds until the next poll, never less than the server wants.

        The jitter is derived from the id, so the flow needs no random source.
        """
        own = min(LAST_POLL, FIRST_POLL * 1.5 ** min(polls, 16))
        seconds = max(LEAST_POLL, own if self.poll is None else self.poll)
        return seconds * (1 + JITTER * crc32(f"{self.id} {polls}".encode()) / 2**32)


MOST_MILLISECONDS = 10**15
"""Of a time that a server names; a larger number is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSnapshot:
    """A task with the asks, result or error of its status."""

    task: Task
    asks: tuple[PendingAsk, ...] = ()
    result: JsonObject | None = None
    error: JsonObject | None = None


def read_task(body: JsonObject) -> Task | str:
    """Return the task that an object describes, or its fault."""
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
        status=cast("TaskStatus", status),
        message=_text(body.get("statusMessage")),
        created=_text(body.get("createdAt")),
        updated=_text(body.get("lastUpdatedAt")),
        ttl=None if ttl is None else ttl / 1000,
        poll=None if poll is None else poll / 1000,
    )


def read_snapshot(body: object, id: str) -> TaskSnapshot | str:
    """Return the state of the task with this id, or the fault of the object (TASK-20)."""
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
            return asks if isinstance(asks, str) else TaskSnapshot(task=task, asks=asks)
        case "completed":
            result = _object(body.get("result"))
            if result is None or result.get("resultType", "complete") != "complete":
                return "the completed task has no result"
            return TaskSnapshot(task=task, result=result)
        case "failed":
            error = _object(body.get("error"))
            if error is None or not _whole(error.get("code")):
                return "the failed task has no error"
            return TaskSnapshot(task=task, error=error)
        case _:
            return TaskSnapshot(task=task)


def ask_digest(ask: PendingAsk) -> str:
    """Return a digest of an ask: a key names the same ask in the whole life of a task (TASK-42)."""
    return short_digest(ask.method.encode(), canonical(dict(ask.params))).hex()


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _counts(value: object) -> bool:
    return _whole(value) and 0 <= cast("int", value) <= MOST_MILLISECONDS


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _object(value: object) -> JsonObject | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
