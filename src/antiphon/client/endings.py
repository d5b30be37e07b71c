"""Turns the end of a flow into a result or a named error. Knows no connection and no person."""

from collections.abc import Mapping
from typing import Any, cast

from antiphon.client.errors import (
    AbilityMissing,
    ClientError,
    ConnectionLost,
    InvalidResponse,
    PatienceLost,
    RemoteError,
    ReplyTimeExceeded,
    RoundsExceeded,
    StateRefused,
    TaskCancelled,
    TaskExpired,
    TaskGone,
    ThinkTimeExceeded,
    TimeExceeded,
)
from antiphon.client.flow_types import Failure, Patience, Stopped
from antiphon.errors import CAPABILITY_MISSING


def error_for(
    stopped: Stopped, patience: Patience, *, age: float, server_changed: bool
) -> ClientError:
    """Give the error for a call that stopped; the caller adds the step."""
    match stopped.reason:
        case "violation":
            return InvalidResponse(stopped.detail)
        case "lost":
            return ConnectionLost(stopped.detail, sent=stopped.sent)
        case "error" | "failed":
            assert stopped.failure is not None
            return remote_error(stopped.failure)
        case "refused-state":
            assert stopped.failure is not None
            return StateRefused(
                stopped.failure.message,
                stopped.failure.data,
                age=age,
                server_changed=server_changed,
            )
        case "gone" | "cancelled" | "expired":
            return _task_error(stopped)
        case _:
            return _bound_error(stopped.reason, patience)


def _bound_error(bound: str, patience: Patience) -> PatienceLost:
    match bound:
        case "rounds":
            return RoundsExceeded(
                f"the server asked again after {patience.rounds} answered rounds", bound
            )
        case "pauses":
            return RoundsExceeded(
                f"the server put the call off more than {patience.pauses} times", bound
            )
        case "think":
            return ThinkTimeExceeded(f"no answer within {patience.think:g} s", bound)
        case "reply":
            return ReplyTimeExceeded(f"no reply within {patience.reply:g} s", bound)
        case _:
            return TimeExceeded(f"the call took longer than {patience.total:g} s", "total")


def _task_error(stopped: Stopped) -> ClientError:
    task, failure = stopped.call.task, stopped.failure
    assert task is not None
    if failure is not None:
        return TaskGone(failure.message, failure.data, task=task.id)
    if stopped.reason == "cancelled":
        return TaskCancelled(task.id, task.message)
    return TaskExpired(task.id)


def remote_error(failure: Failure) -> RemoteError:
    """Give the error for a JSON-RPC error."""
    data: object = failure.data
    if failure.code == CAPABILITY_MISSING and isinstance(data, dict):
        required = cast("dict[str, Any]", data).get("requiredCapabilities")
        if isinstance(required, Mapping):
            needed = cast("Mapping[str, Any]", required)
            return AbilityMissing(failure.message, failure.data, needed)
    return RemoteError(failure.code, failure.message, failure.data)
