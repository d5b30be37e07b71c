"""The states of an execution of a handler, and how it ends: a closed union.

What an end means is each host's business. `engine.py` turns it into the reply to a request,
`delivery.py` into the result of a legacy session's call, `tasks/task_run.py` into a change of a
task's row.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

import msgspec

from antiphon.engine.questions import Asked


class ExecutionState(Enum):
    """What a call on the context meets."""

    RUNNING = "running"
    """It does its work."""

    ASLEEP = "asleep"
    """The handler is parked between two rounds: there is no request, and nothing may happen."""

    ENDING = "ending"
    """The round ends: `Suspended` is raised again, until the handler has unwound."""

    CUT_OFF = "cut off"
    """The same, because the execution was cancelled from outside: the round has not ended, and
    nothing is recorded. (The entry outcome `cut` is a cancellation by the author's own code.)"""

    CLOSED = "closed"
    """The execution is over: what still holds the context is refused."""


RUNNING, ASLEEP = ExecutionState.RUNNING, ExecutionState.ASLEEP
ENDING, CUT_OFF, CLOSED = ExecutionState.ENDING, ExecutionState.CUT_OFF, ExecutionState.CLOSED

NEXT_STATES = {
    RUNNING: {ASLEEP, ENDING, CUT_OFF, CLOSED},
    ASLEEP: {RUNNING, ENDING, CUT_OFF, CLOSED},
    ENDING: {CLOSED},
    CUT_OFF: {CLOSED},
    CLOSED: set[ExecutionState](),
}
"""Every move there is; one that is not here changes nothing."""


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
