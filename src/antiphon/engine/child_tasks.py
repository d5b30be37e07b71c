"""Child tasks of user code: what would end the process ends only the child.

asyncio lets `SystemExit` and `KeyboardInterrupt` of any task out of the event loop, whoever's loop
it is. A task that user code starts is therefore given a coroutine that raises an ordinary error in
their place. Other tasks of the loop are made as before.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any


class UserCodeExit(Exception):
    """User code raised what is no `Exception`, such as `SystemExit`: it has failed, no more."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")


in_user_code: ContextVar[bool] = ContextVar("antiphon_user_code", default=False)
"""Whether this code is user code, or was started by it."""

_ENDS = (SystemExit, KeyboardInterrupt)


class GuardedCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine of user code that cannot end the process."""

    __slots__ = ("__weakref__", "inner")

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self.inner: Any = inner

    def send(self, value: Any) -> Any:
        try:
            return self.inner.send(value)
        except _ENDS as error:
            raise UserCodeExit(error) from error

    def throw(self, *error: Any) -> Any:
        try:
            return self.inner.throw(*error)
        except _ENDS as ended:
            raise UserCodeExit(ended) from ended

    def close(self) -> None:
        self.inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.inner.__await__()

    # What is shown of a coroutine; libraries look whether it has begun.

    @property
    def cr_running(self) -> bool:
        return self.inner.cr_running

    @property
    def cr_suspended(self) -> bool:
        return self.inner.cr_suspended

    @property
    def cr_frame(self) -> Any:
        return self.inner.cr_frame

    @property
    def cr_code(self) -> Any:
        return self.inner.cr_code

    @property
    def cr_await(self) -> Any:
        return self.inner.cr_await


class ChildTaskFactory:
    """Makes the tasks of an event loop, as its factory before did."""

    def __init__(self, before: Callable[..., Any] | None) -> None:
        self._before = before or _make_task

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> "asyncio.Future[Any]":
        if in_user_code.get() and isinstance(coroutine, Coroutine):
            coroutine = GuardedCoroutine(coroutine)  # pyright: ignore[reportUnknownArgumentType]
        return self._before(loop, coroutine, **options)


def _make_task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
) -> "asyncio.Task[Any]":
    return asyncio.Task(coroutine, loop=loop, **options)


def guard_child_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let an event loop make child tasks of user code so that they cannot end the process."""
    before = loop.get_task_factory()
    if type(before) is not ChildTaskFactory:
        loop.set_task_factory(ChildTaskFactory(before))


def coroutine_of(task: "asyncio.Task[Any]") -> Any:
    """Return the coroutine that a task runs, as user code made it."""
    found: Any = task.get_coro()
    return found.inner if type(found) is GuardedCoroutine else found
