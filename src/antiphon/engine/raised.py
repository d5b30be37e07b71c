"""What an exception means that came out of a handler: the end of its round, or a failure."""

import asyncio
from typing import cast

from antiphon.engine.child_tasks import UserCodeExit, contains
from antiphon.engine.suspension import Abandoned, Suspended
from antiphon.errors import HandlerError, SwallowedAsk

_CHAIN = 32
"""How far back the chain of an exception is followed."""


def failure_of(error: BaseException, owner: object, unwinding: str) -> Exception | None:
    """Return with what a handler has failed; None when its round ended by its own `Suspended`.

    Args:
        error: What came out of the handler.
        owner: Whose `Suspended` counts.
        unwinding: While the round ends, the key of its first ask. Cancellations are part of the end
            then, and whatever else was raised in handling it means that the ask was swallowed.

    Raises:
        Abandoned: It is in there.
    """
    if contains(error, Abandoned):
        raise Abandoned from error
    own = _without_end(error, owner, cancelled=bool(unwinding))
    if own is None:
        return None
    if isinstance(own, Suspended):
        return HandlerError("the end of another call's round came out of this handler")
    if unwinding and raised_while_suspending(own):
        swallowed = isinstance(own, SwallowedAsk)
        return own if swallowed else _caused(SwallowedAsk(unwinding), error)
    if isinstance(own, asyncio.CancelledError):
        return _caused(RuntimeError("the handler was cancelled from inside"), error)
    return own if isinstance(own, Exception) else UserCodeExit(own)


def _without_end(error: BaseException, owner: object, *, cancelled: bool) -> BaseException | None:
    """Return what is not the end of the owner's round; a group is, if everything in it is.

    What would end the process has only failed (a serializer of the author's may raise it).
    """

    def is_end(one: BaseException) -> bool:
        if isinstance(one, Suspended):
            return one.args[0] is owner
        return cancelled and isinstance(one, asyncio.CancelledError)

    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        return _caused(UserCodeExit(error), error)
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).split(is_end)[1]
    return None if is_end(error) else error


def raised_while_suspending(error: BaseException) -> bool:
    """Return whether an error was raised while a round's end was handled: converted, or in cleanup.

    One that was not is a branch's own failure in the same moment, and wins.
    """
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return any(map(raised_while_suspending, group.exceptions))
    return _follows(error, (Suspended, asyncio.CancelledError))


def raised_in_branch(error: BaseException) -> bool:
    """Return whether an error came out of a task group, or while one was handled."""
    return _follows(error, (BaseExceptionGroup,))


def _follows(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Return whether an error is of one of these kinds, or was raised because of one."""
    seen: BaseException | None = error
    for _ in range(_CHAIN):
        if seen is None or isinstance(seen, kinds):
            break
        seen = seen.__cause__ or seen.__context__
    return seen is not None


def _caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error
