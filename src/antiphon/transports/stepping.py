"""Resuming a coroutine that was stepped by hand up to its first wait.

Most rounds end without ever waiting, and need no task, no watcher and no time limit:

    try:
        yielded = coroutine.send(None)
    except StopIteration as end:
        return end.value
    ...                                     # here: whatever only a round that waits needs
    return await resume(coroutine, yielded)

All of it runs in the caller's own task, so that time limits and task groups inside the coroutine
find the task they belong to. Nothing may wait between the two: the coroutine has yielded the
future that it waits for, and the event loop must be the next to see it.
"""

import types
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def resume(
    coroutine: Coroutine[Any, Any, T], yielded: Any, context: Context | None = None
) -> Generator[Any, Any, T]:
    """Run to the end; cancellation reaches the coroutine as if it were awaited.

    With a context, every step runs in it: the one that its first step ran in.
    """
    run = context.run if context is not None else _call
    while True:
        try:
            sent = yield yielded
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as thrown:  # noqa: BLE001 - passed on to where it belongs
            step, value = coroutine.throw, thrown
        else:
            step, value = coroutine.send, sent
        try:
            yielded = run(step, value)  # pyright: ignore[reportArgumentType,reportCallIssue]
        except StopIteration as end:
            return end.value


def _call(step: Any, value: Any) -> Any:
    return step(value)
