"""Task objects of the Tasks extension, as bytes."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

_encode = msgspec.json.encode

TERMINAL = frozenset({"completed", "failed", "cancelled"})
"""Statuses that never change again."""


class TaskView(msgspec.Struct, frozen=True):
    """What a client is shown of a task."""

    id: str
    status: str
    message: str
    created: float
    updated: float
    ttl: float | None
    poll: float
    asks: tuple[tuple[str, bytes], ...] = ()
    result: bytes = b""
    error: Mapping[str, Any] | None = None


IMMEDIATE = b"io.modelcontextprotocol/model-immediate-response"
"""The member of `_meta` that a host hands to its model while a task is under way."""


def created(view: TaskView, meta: bytes, told: str = "") -> bytes:
    """Write a CreateTaskResult: flat, without the details of `tasks/get` (TASK-07).

    Args:
        view: The task.
        meta: The end of every result, with `_meta`.
        told: What a model is told meanwhile.
    """
    if told:
        meta = meta.removesuffix(b"}}") + b',"%b":%b}}' % (IMMEDIATE, _encode(told))
    return b'{"resultType":"task",' + _members(view) + meta


def shown(view: TaskView, meta: bytes) -> bytes:
    """Write the result of `tasks/get` (TASK-20)."""
    return b'{"resultType":"complete",' + details(view)[1:-1] + meta


def details(view: TaskView) -> bytes:
    """Write a task with the members of its status; `notifications/tasks` carries the same."""
    parts = [b"{", _members(view)]
    if view.status == "input_required":
        asks = b",".join([_encode(key) + b":" + body for key, body in view.asks])
        parts.append(b',"inputRequests":{' + asks + b"}")
    elif view.status == "completed":
        parts.append(b',"result":' + view.result)
    elif view.status == "failed":
        parts.append(b',"error":' + _encode(view.error or {}))
    return b"".join(parts) + b"}"


def acknowledged(meta: bytes) -> bytes:
    """Write the empty acknowledgement of `tasks/update` and `tasks/cancel`."""
    return b'{"resultType":"complete"' + meta


def _members(view: TaskView) -> bytes:
    """Write the members that every task object has, without braces."""
    # Null means unlimited; the member is required.
    ttl = b"null" if view.ttl is None else b"%d" % round(view.ttl * 1000)
    members = b'"taskId":%b,"status":%b,"createdAt":"%b","lastUpdatedAt":"%b","ttlMs":%b' % (
        _encode(view.id),
        _encode(view.status),
        _iso(view.created),
        _iso(view.updated),
        ttl,
    )
    members += b',"pollIntervalMs":%d' % max(1, round(view.poll * 1000))
    return members + b',"statusMessage":' + _encode(view.message) if view.message else members


def _iso(at: float) -> bytes:
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z").encode()


def next_key(key: str, issued: int) -> str:
    """Return the key of an ask in its task; asking again takes a new key (TASK-42)."""
    return key if issued == 0 else f"{key}.r{issued}"


def known(keys: Iterable[str], outstanding: Iterable[str]) -> list[str]:
    """Return the keys that are outstanding; all others are ignored (TASK-43)."""
    wanted = set(outstanding)
    return [key for key in keys if key in wanted]
