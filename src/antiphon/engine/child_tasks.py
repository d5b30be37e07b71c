"""Which code is user code, its waits and child tasks, and that they cannot end the process.

A child task that uses the context is a *branch* of the handler. An ask in a branch waits on a
future; when nothing has asked for the quiet time, the handler's own task is cancelled, and
structured concurrency carries that down to every branch.

asyncio lets `SystemExit` and `KeyboardInterrupt` of any task out of the event loop, whoever's loop
it is, and `GeneratorExit` out of one closes whoever awaits it. A task that user code starts is
therefore given a coroutine that raises an ordinary error in their place. Other tasks of the loop
are made as before.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

from antiphon.engine.questions import Question

if TYPE_CHECKING:
    from antiphon.engine.execution import Execution

running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop  # pyright: ignore[reportPrivateUsage] - documented
"""Return the event loop of this thread. None in a worker thread, where nothing can be awaited."""

# Where it is written in Python it is slow, and every ask of a re-run comes here.
_slow: Any = asyncio.tasks
task_of: Callable[[Any], asyncio.Task[Any] | None] = (
    asyncio.current_task if sys.version_info >= (3, 12) else _slow._current_tasks.get
)
"""Return the task that a running loop runs now."""

_CATCH_UP = 20
"""How many quiet times (`settle=`) a round waits while recorded entries of branches are unread."""


class UserCodeExit(Exception):
    """User code raised what is no `Exception`, such as `SystemExit`: it has failed, no more."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")


in_user_code: ContextVar[bool] = ContextVar("antiphon_user_code", default=False)
"""Whether this code is user code, or was started by it."""

_ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit)
"""What must not come out of a task: it would end the process, or close whoever awaits the task."""


class Unwinding(BaseException):
    """Unwinds a handler and its child tasks, and is no failure of theirs."""


SIGNALS = (Unwinding, asyncio.CancelledError)
"""What passes through user code and is no failure of it."""


def as_failure(error: BaseException) -> BaseException:
    """Return what user code raised as an `Exception`, unless it only lets a signal pass."""
    signal = any(contains(error, kind) for kind in SIGNALS)
    return error if signal else UserCodeExit(error)


def contains(error: BaseException, kind: type[BaseException]) -> bool:
    """Return whether an error is of a kind, or a group with such an error in it."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kind) is not None  # pyright: ignore[reportUnknownMemberType]
    return isinstance(error, kind)


def _retrieved(task: "asyncio.Task[Any]") -> None:
    """Retrieve how a task was unwound, so that asyncio does not log what nobody waits for."""
    if not task.cancelled():
        task.exception()


class GuardedCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine of user code that can end neither the process nor whoever awaits it."""

    __slots__ = ("__weakref__", "inner")

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self.inner: Any = inner

    def send(self, value: Any) -> Any:
        try:
            return self.inner.send(value)
        except _ENDS as error:
            raise UserCodeExit(error) from error
        except Unwinding:
            self._end_quietly()
            raise

    def throw(self, *error: Any) -> Any:
        try:
            return self.inner.throw(*error)
        except _ENDS as ended:
            raise UserCodeExit(ended) from ended
        except Unwinding:
            self._end_quietly()
            raise

    def _end_quietly(self) -> None:
        task = asyncio.current_task()
        if task is not None:
            task.add_done_callback(_retrieved)

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


class WatchedWait(asyncio.Future[Any]):
    """Stands for the future that a handler waits for, in the eyes of its task.

    `Task.cancel` cancels what the task waits for, at once and in the context of whoever calls it:
    a time limit, task group or callback of user code runs in a context of user code.

    `GeneratorExit` out of the future (a thread of the author's may have raised it) would look to
    everything between the task and the handler as if it were closed: it is raised as a failure.
    """

    def __init__(self, awaited: "asyncio.Future[Any]", cancelled_outside: Callable[[], None]):
        super().__init__(loop=awaited.get_loop())
        self._asyncio_future_blocking = True
        awaited._asyncio_future_blocking = False
        self._awaited = awaited
        self._cancelled_outside = cancelled_outside

    def cancel(self, msg: Any | None = None) -> bool:
        if not in_user_code.get():
            self._cancelled_outside()
        return self._awaited.cancel(msg=msg)

    def add_done_callback(self, fn: Any, /, *, context: Context | None = None) -> None:
        self._awaited.add_done_callback(lambda _: fn(self), context=context)

    def result(self) -> Any:
        try:
            return self._awaited.result()
        except GeneratorExit as exit:
            raise UserCodeExit(exit) from exit

    def done(self) -> bool:
        return self._awaited.done()

    def cancelled(self) -> bool:
        return self._awaited.cancelled()


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


_inside: ContextVar[tuple[tuple[object, str], ...]] = ContextVar("antiphon_inside", default=())
"""Whose effects or memos this code runs in. Child tasks and threads inherit it."""

get_inside: Callable[[], tuple[tuple[object, str], ...]] = _inside.get
"""Whose effects or memos this code runs in; empty for nearly all code."""


@contextlib.contextmanager
def inside(mark: object, key: str) -> Generator[None]:
    """Mark the code below, and all that it starts, as an effect or memo."""
    token = _inside.set((*_inside.get(), (mark, key)))
    try:
        yield
    finally:
        _inside.reset(token)


def key_inside(mark: object) -> str | None:
    """Return the key of the effect or memo that this code runs in, or None."""
    for owner, key in _inside.get():
        if owner is mark:
            return key
    return None


class Branches:
    """The branches of one execution; made when the first of them uses the context."""

    __slots__ = (
        "_idle_times", "_tasks", "_timer", "_waiting", "cancellations", "cut", "new", "unclaimed",
    )  # fmt: skip

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any] | None] = set()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._idle_times = 0
        self.cancellations: int = 0
        """How often the handler's own task was cancelled to end the round."""

        self.cut: bool = False
        """Whether the author's code has cancelled a call on the context in a branch."""

        self.new: str = ""
        """The first new ask, memo or effect of a branch that came while recorded entries were
        unread: if they stay unread, it is what the error names."""

        self.unclaimed: dict[str, asyncio.Task[Any] | None] = {}
        """Branches that have begun an effect and not yet claimed it, by the effect's key."""

    def add(self, task: "asyncio.Task[Any] | None") -> None:
        """Note that a child task uses the context."""
        self._tasks.add(task)

    @property
    def wait(self) -> bool:
        """Whether branches wait for answers of their own."""
        return bool(self._waiting)

    @property
    def any_alive(self) -> bool:
        """Whether a branch has not ended."""
        return any(task is not None and not task.done() for task in self._tasks)

    @property
    def any_cancelled(self) -> bool:
        """Whether a branch was cancelled, so that it may not have come to its entries."""
        return self.cut or any(task.cancelled() for task in self._tasks if task is not None)

    async def wait_for_end(
        self, execution: "Execution", batch: Sequence[tuple[str, Question]]
    ) -> None:
        """Wait until the round ends; returns only by being cancelled."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.add(future)
        self._idle_times = 0
        self._start_timer(execution)
        try:
            await future  # never resolved: it is cancelled when the round ends
        finally:
            self._waiting.discard(future)
            if not execution.ending:
                # The author's own code ended the wait: nobody wants these answers any more.
                self.cut = True
                _take_back(execution, [key for key, _ in batch])

    def _start_timer(self, execution: "Execution") -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop, quiet = asyncio.get_running_loop(), execution.handler.options.settle
        self._timer = loop.call_later(quiet, self._on_idle, execution)

    def _on_idle(self, execution: "Execution") -> None:
        """Nothing has asked for a while: end the round, unless branches still have to catch up."""
        if execution.ending or not self._waiting:
            return
        self._idle_times += 1
        if execution.replay.unread and self._idle_times < _CATCH_UP:
            self._start_timer(execution)
            return
        execution.end_round()
        self.cancel_handler(execution.task)

    def cancel_handler(self, task: "asyncio.Task[Any] | None") -> None:
        """Cancel the handler's own task; structured concurrency carries it down."""
        if task is not None:
            self.cancellations += 1
            task.cancel()

    def uncancel_handler(self, task: "asyncio.Task[Any] | None") -> None:
        """Take back our own cancellations, so that none is left over for the caller's scopes."""
        while self.cancellations and task is not None:
            self.cancellations -= 1
            task.uncancel()

    def close(self) -> None:
        """The execution is over: cancel what still waits."""
        self._tasks.clear()
        if self._timer is not None:
            self._timer.cancel()
        for future in tuple(self._waiting):
            future.cancel()


def _take_back(execution: "Execution", keys: Sequence[str]) -> None:
    """Ask nobody what nobody waits for any more."""
    for key in keys:
        execution.asked.pop(key, None)
    if execution.held:
        execution.held = {key: ask for key, ask in execution.held.items() if key not in keys}


def uncancel(task: "asyncio.Task[Any]", before: int, branches: Branches | None) -> None:
    """Take back every cancellation that is left, when the handler did not end by it.

    Task groups of Python 3.11 and 3.12 forget theirs when a child has failed.

    Args:
        task: The handler's own.
        before: How often it had been cancelled when the handler began.
        branches: Of its execution: they may have cancelled it to end the round.
    """
    if branches is not None:
        branches.cancellations = 0
    while task.cancelling() > before:
        task.uncancel()
