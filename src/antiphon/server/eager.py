"""Running a coroutine from where one stands, without a task for it. Knows only coroutines.

Most rounds end without ever waiting. `start` runs a coroutine to its end or to its first wait;
`finish` goes on from there, and the caller may do something in between, such as posting a watcher,
that only a round that really waits is worth. Both run in the caller's own task, so that time
limits and task groups inside the coroutine find the task they belong to.

Nothing may be awaited between the two: the coroutine has handed out the future it waits for.
"""

import types
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, Generic, NamedTuple, TypeVar, cast

T = TypeVar("T")


class Ended(NamedTuple, Generic[T]):
    """The coroutine has returned."""

    value: T


class Waiting(NamedTuple, Generic[T]):
    """The coroutine waits for what it has handed out."""

    coroutine: Coroutine[Any, Any, T]
    handed_out: Any
    context: Context | None


def start(
    coroutine: Coroutine[Any, Any, T], context: Context | None = None
) -> "Ended[T] | Waiting[T]":
    """Run a coroutine until it ends or waits; with a context, all its steps run in that."""
    try:
        if context is None:
            handed_out = coroutine.send(None)
        else:
            handed_out = context.run(coroutine.send, None)
    except StopIteration as end:
        return Ended(end.value)
    return Waiting(coroutine, handed_out, context)


@types.coroutine
def finish(waiting: Waiting[T]) -> Generator[Any, Any, T]:
    """Go on with a waiting coroutine to its end; cancellation reaches it as if it were awaited."""
    coroutine, handed_out, context = waiting
    run = context.run if context is not None else _call
    while True:
        try:
            sent = yield handed_out
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as thrown:  # noqa: BLE001 - passed on to where it belongs
            step, value = cast("Any", coroutine.throw), cast("Any", thrown)
        else:
            step, value = cast("Any", coroutine.send), sent
        try:
            handed_out = run(step, value)
        except StopIteration as end:
            return end.value


def _call(step: Any, value: Any) -> Any:
    return step(value)
