"""Turns the end of a flow into a result or a named error. Knows no connection and no person."""

from collections.abc import Mapping
from typing import Any, cast

from antiphon.client.errors import (
    AbilityMissing,
    ClientError,
    ConnectionLost,
    InvalidResponse,
    RemoteError,
    ReplyTimeExceeded,
    RoundsExceeded,
    StateRefused,
    ThinkTimeExceeded,
    TimeExceeded,
)
from antiphon.core.flow import Failure, Patience, Stopped
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
        case "error":
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
        case "rounds":
            return RoundsExceeded(
                f"the server asked again after {patience.rounds} answered rounds", "rounds"
            )
        case "pauses":
            return RoundsExceeded(
                f"the server put the call off more than {patience.pauses} times", "pauses"
            )
        case "total":
            return TimeExceeded(f"the call took longer than {patience.total:g} s", "total")
        case "think":
            return ThinkTimeExceeded(f"no answer within {patience.think:g} s", "think")
        case "reply":
            return ReplyTimeExceeded(f"no reply within {patience.reply:g} s", "reply")


def remote_error(failure: Failure) -> RemoteError:
    """Give the error for a JSON-RPC error."""
    data: object = failure.data
    if failure.code == CAPABILITY_MISSING and isinstance(data, dict):
        required = cast("dict[str, Any]", data).get("requiredCapabilities")
        if isinstance(required, Mapping):
            needed = cast("Mapping[str, Any]", required)
            return AbilityMissing(failure.message, failure.data, needed)
    return RemoteError(failure.code, failure.message, failure.data)
