"""Running a handler: the private signals that unwind it, and the driving of one that waits.

What an exception means that came out of it is told by `raised.py`.
"""

import asyncio
import contextlib
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from antiphon.engine.child_tasks import SIGNALS, Unwinding, WatchedWait, as_failure, in_user_code

if TYPE_CHECKING:
    from antiphon.engine.execution import Execution

_ABORT = object()


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


class WaitingHandler(NamedTuple):
    """A handler that really waits, and for what."""

    handler: Coroutine[Any, Any, Any]
    waits_for: Any


async def as_coroutine(awaitable: Awaitable[Any]) -> Any:
    """Await what is no coroutine itself."""
    return await awaitable


@types.coroutine
def go_on(
    execution: "Execution", handler: Coroutine[Any, Any, Any], waits_for: Any
) -> Generator[Any, Any, Any]:
    """Drive a handler that waits, from what it waits for to its end.

    Raises:
        UserCodeExit: It raised what is no `Exception`.
        SwallowedAsk: It cannot be unwound, and was left.
    """
    while True:
        step, value = yield from _wait(execution, handler, waits_for)
        mark = in_user_code.set(True)
        try:
            waits_for = step(value)
        except StopIteration as stop:
            return stop.value
        except (Exception, *SIGNALS):
            raise
        except BaseException as exit:
            raise as_failure(exit) from exit
        finally:
            in_user_code.reset(mark)


def _wait(
    execution: "Execution", handler: Coroutine[Any, Any, Any], waits_for: Any
) -> Generator[Any, Any, tuple[Callable[[Any], Any], Any]]:
    """Wait for what a handler waits for; return how it goes on, and with what.

    The execution hears when something else than user code cancels the wait.
    """
    step, value = handler.send, None
    if waits_for is not _ABORT:
        if asyncio.isfuture(waits_for):
            waits_for = WatchedWait(waits_for, execution.cut_off)
        try:
            return step, (yield waits_for)
        except GeneratorExit:
            handler.close()
            raise
        except BaseException as thrown:  # noqa: BLE001 - handed on to the handler as it is
            step, value = handler.throw, thrown
    error = execution.interrupted()
    if error is not None:
        with contextlib.suppress(RuntimeError):
            handler.close()  # it may ignore even that; nobody runs it any more
        raise error
    return step, value


@types.coroutine
def abort_handler() -> Generator[Any, Any, None]:
    """Leave the handler, from its own task: it cannot be unwound."""
    yield _ABORT


async def block_forever() -> None:
    """Keep a branch that swallows everything from spinning. It never returns."""
    await asyncio.get_running_loop().create_future()
