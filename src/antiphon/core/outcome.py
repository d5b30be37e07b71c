"""How a round can end: complete, input required, task created, failed. A closed union."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from antiphon.core.asks import Ask


class InputRequired(msgspec.Struct, frozen=True):
    """End the round and ask. Without asks it is state-only: the client comes back at once."""

    asks: Mapping[str, Ask] = msgspec.field(default_factory=dict[str, Ask])
    state: Any = None
    """Any JSON value; given back as `ctx.state` in the next round."""


class Complete(msgspec.Struct, frozen=True):
    """The call is done. `result` is the JSON of the result object, without the modern envelope."""

    result: bytes


class TaskCreated(msgspec.Struct, frozen=True):
    """The rest of the call runs as a task."""

    task_id: str


class Failed(msgspec.Struct, frozen=True):
    """The round ended in a JSON-RPC error."""

    code: int
    message: str
    data: Any = None


RoundOutcome: TypeAlias = Complete | InputRequired | TaskCreated | Failed
