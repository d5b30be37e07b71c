"""How an execution of a handler ends: a closed union, and what it means is each host's business.

`engine.py` turns an outcome into the reply to a request, `delivery.py` into the result of a legacy
session's call, `tasks/task_run.py` into a change of a task's row.
"""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from antiphon.engine.questions import Asked


class Completed(msgspec.Struct, frozen=True):
    """The handler returned, its result is written, and its `on_commit` effects have run."""

    result: bytes


class NeedsInput(msgspec.Struct, frozen=True):
    """The handler waits for answers of the client."""

    asks: Mapping[str, Asked]


class Paused(msgspec.Struct, frozen=True):
    """The round ends without a question; the client comes back for the next one."""

    delay: float = 0.0
    """Seconds for which the response is held back."""


class Detached(msgspec.Struct, frozen=True):
    """The rest of the call runs as a task."""

    message: str


class Held(msgspec.Struct, frozen=True):
    """The handler waits for people who are not the client to decide (`tasks/held.py`)."""

    asks: Mapping[str, Asked]


class Failed(msgspec.Struct, frozen=True):
    """The handler raised, or the framework found something wrong with the execution."""

    error: Exception


ExecutionOutcome: TypeAlias = Completed | NeedsInput | Paused | Detached | Held | Failed
