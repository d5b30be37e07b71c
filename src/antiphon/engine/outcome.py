"""How an execution of a handler ends: a closed union, and what it means is each host's business.

`engine.py` turns an outcome into the reply to a request, `delivery.py` into the result of a legacy
session's call, `tasks/task_run.py` into a change of a task's row.
"""

from collections.abc import Mapping
from typing import TypeAlias, cast

import msgspec

from antiphon.core.asks import seconds
from antiphon.core.journal import Pending
from antiphon.engine.questions import Question
from antiphon.errors import EffectFailed, Refused, ToolError


class Asked(msgspec.Struct, frozen=True, gc=False):
    """An ask that goes out to the client."""

    question: Question
    tries: int = 0
    """How many answers to it were refused because they did not fit."""

    reason: str = ""
    """Why the last answer did not fit."""

    branch: bool = False
    """Whether a child task of the handler asks it."""

    def pending(
        self, key: str, now: float, *, before: Pending | None = None, native: bool = False
    ) -> Pending:
        """Return the ask as a token or a task's row remembers it.

        Args:
            key: Under which it is asked.
            now: Seconds since the epoch.
            before: The same ask as the round before put it: asking again does not start its time
                anew.
            native: Whether no re-run will ask again, so that the form must be remembered.
        """
        q = self.question
        if before is not None and before.digest == q.digest and before.expires:
            expires = before.expires
        else:
            expires = now + seconds(q.ask.timeout) if q.ask.timeout is not None else 0.0
        return Pending(
            key=key,
            kind=q.kind,
            digest=q.digest,
            note=q.note,
            tries=self.tries,
            expires=expires,
            schema=q.shown if native else b"",
            secret=q.ask.secret,
            branch=self.branch,
        )


class Completed(msgspec.Struct, frozen=True):
    """The handler returned, its result is written, and its `on_commit` effects have run."""

    result: bytes


class NeedsInput(msgspec.Struct, frozen=True):
    """The handler waits for answers."""

    asks: Mapping[str, Asked]


class Paused(msgspec.Struct, frozen=True):
    """The round ends without a question; the client comes back for the next one."""

    delay: float = 0.0
    """Seconds for which the response is held back."""


class Detached(msgspec.Struct, frozen=True):
    """The rest of the call runs as a task."""

    message: str


class Failed(msgspec.Struct, frozen=True):
    """The handler raised, or the framework found something wrong with the execution."""

    error: Exception


DELIBERATE = (ToolError, Refused, EffectFailed)
"""Errors by which a round is over: recorded, and the same for every duplicate."""


def sole_error(error: Exception) -> Exception:
    """Return the one error of a group of one; other errors as they are."""
    seen: object = error
    while isinstance(seen, ExceptionGroup):
        inner = cast("ExceptionGroup[Exception]", seen).exceptions
        if len(inner) != 1:
            break
        seen = inner[0]
    return cast("Exception", seen)


ExecutionOutcome: TypeAlias = Completed | NeedsInput | Paused | Detached | Failed
