"""How a round ends inside user code, and what an exception that came out of it means.

Owns the private signals that unwind a handler, the driving of a handler that waits, and the
reading of exceptions.
"""

import asyncio
import contextlib
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, cast

from antiphon.engine.child_tasks import Unwinding, UserCodeExit, WatchedWait, in_user_code
from antiphon.errors import HandlerError, SwallowedAsk

_CHAIN = 32
"""How far back the chain of an exception is followed."""

_ABORT = object()

running_loop = asyncio._get_running_loop  # pyright: ignore[reportPrivateUsage] - documented
"""Return the event loop of this thread. None in a worker thread, where nothing can be awaited."""


class Suspended(Unwinding):
    """The round ended at this ask; let it pass.

    You see this because a handler asked for something: its frame is unwound so that `finally` and
    context managers run, and the handler is run again when the answer has come. Catch `Exception`
    or the errors you mean, never `BaseException`.
    """

    # Its one argument is whose round ended: each execution takes only its own.

    def __str__(self) -> str:
        """Say what a handler that catches it should do."""
        return "the round ended at this ask; let it pass"


class Abandoned(Unwinding):
    """Another process has taken this round over; whatever this execution does no longer counts."""


_SIGNALS = (Unwinding, asyncio.CancelledError)
"""What passes through user code and is no failure of it."""


# --- driving a handler --------------------------------------------------------------------------


async def as_coroutine(awaitable: Awaitable[Any]) -> Any:
    """Await what is no coroutine itself."""
    return await awaitable


@types.coroutine
def go_on(
    handler: Coroutine[Any, Any, Any],
    yielded: Any,
    unwindable: Callable[[], BaseException | None],
    cancelled_outside: Callable[[], None],
) -> Generator[Any, Any, Any]:
    """Drive a handler that waits, from what it waits for to its end.

    It is left with the error that `unwindable` returns once it cannot be unwound.
    `cancelled_outside` is called when something else than user code cancels its wait.

    Raises:
        UserCodeExit: It raised what is no `Exception`.
    """
    while True:
        value: Any = None
        step: Callable[[Any], Any] = handler.send
        error = unwindable() if yielded is _ABORT else None
        if error is None:
            if asyncio.isfuture(yielded):
                yielded = WatchedWait(yielded, cancelled_outside)
            try:
                value = yield yielded
            except GeneratorExit:
                handler.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - handed on to the handler as it is
                error, value, step = unwindable(), thrown, handler.throw
        if error is not None:
            with contextlib.suppress(RuntimeError):
                handler.close()  # it may ignore even that; nobody runs it any more
            raise error
        mark = in_user_code.set(True)
        try:
            yielded = step(value)
        except StopIteration as stop:
            return stop.value
        except (Exception, *_SIGNALS):
            raise
        except BaseException as exit:
            raise as_failure(exit) from exit
        finally:
            in_user_code.reset(mark)


@types.coroutine
def abort_handler() -> Generator[Any, Any, None]:
    """Leave the handler, from its own task: it cannot be unwound."""
    yield _ABORT


async def block_forever() -> None:
    """Keep a branch that swallows everything from spinning. It never returns."""
    await asyncio.get_running_loop().create_future()


# --- what came out ------------------------------------------------------------------------------


def as_failure(error: BaseException) -> BaseException:
    """Return what user code raised as an `Exception`, unless it only lets a signal pass."""
    signal = any(holds(error, kind) for kind in _SIGNALS)
    return error if signal else UserCodeExit(error)


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
    if holds(error, Abandoned):
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


def holds(error: BaseException, kind: type[BaseException]) -> bool:
    """Return whether an error is of a kind, or a group that holds one."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kind) is not None  # pyright: ignore[reportUnknownMemberType]
    return isinstance(error, kind)


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
