"""The event loop of a process that is ours, and what may end it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, cast

from antiphon.protocol.failures import log_failure

log: logging.Logger = logging.getLogger("antiphon")

_T = TypeVar("_T")


def run_loop(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on an event loop of its own, the fastest there is.

    asyncio lets a `SystemExit` of any task out of the loop, so that a task which a handler has
    started would end the process. That task has failed; the loop goes on. What nobody handles is
    logged without the text of exceptions, because they may hold an answer.
    """
    task: asyncio.Task[Any] | None = None

    async def remembered() -> _T:
        nonlocal task
        task = asyncio.current_task()
        return await main

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.get_loop().set_exception_handler(_log_unhandled)
        run: Callable[[], _T] = partial(runner.run, remembered())
        while True:
            try:
                return run()
            except SystemExit as error:
                if task is None or task.done():
                    raise
                text = "a task of a handler raised SystemExit; the process goes on"
                log_failure(log, error, text)
                run = partial(runner.get_loop().run_until_complete, cast("asyncio.Task[_T]", task))


def _log_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what no code has handled: an exception by its type and places, and no value.

    In the debug mode of asyncio everything is logged, as asyncio does it.
    """
    error = context.get("exception")
    if loop.get_debug():
        loop.default_exception_handler(context)
    elif error is not None:
        # The message of asyncio may show the arguments of a callback.
        kind = "callback" if "handle" in context else "task"
        log_failure(log, error, "nobody has handled an exception of a %s", kind)
    else:
        log.error("the event loop says: %s", context.get("message"))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
