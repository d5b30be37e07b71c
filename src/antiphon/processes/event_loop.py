"""The event loop of a process that is ours, and what may end it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, cast

from antiphon.core.failures import log_failure

log = logging.getLogger("antiphon")

_T = TypeVar("_T")


def run_loop(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on an event loop of its own, the fastest there is.

    asyncio lets a `SystemExit` of any task out of the loop, so that a task which a handler has
    started would end the process. That task has failed; the loop goes on.
    """
    task: asyncio.Task[Any] | None = None

    async def remembered() -> _T:
        nonlocal task
        task = asyncio.current_task()
        return await main

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
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


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
