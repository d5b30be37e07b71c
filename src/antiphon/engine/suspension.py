"""Running user code: how a round ends inside it, how it is called, what came out of it.

Owns the private signals that unwind a handler, the one way into user code (`call_user` for
functions, `run_user_code` for the handler itself), the mark of code that runs inside an effect,
and the reading of exceptions.
"""

import asyncio
import contextlib
import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextvars import ContextVar
from typing import Any, cast

from antiphon.engine.child_tasks import UserCodeExit, guard_child_tasks, in_user_code
from antiphon.engine.handler import is_async


class Suspended(BaseException):
    """The round ended at this ask; let it pass.

    You see this because a handler asked for something: its frame is unwound so that `finally` and
    context managers run, and the handler is run again when the answer has come. Catch `Exception`
    or the errors you mean, never `BaseException`.
    """

    # Its one argument is whose round ended: each execution takes only its own.

    def __str__(self) -> str:
        """Say what a handler that catches it should do."""
        return "the round ended at this ask; let it pass"


class Abandoned(BaseException):
    """Another process has taken this round over; whatever this execution does no longer counts."""


_SIGNALS = (Suspended, Abandoned, asyncio.CancelledError)
"""What passes through user code and is no failure of it."""

_ABORT = object()

_CHAIN = 32
"""How far back the chain of an exception is followed."""

_inside: ContextVar[tuple[tuple[object, str], ...]] = ContextVar("antiphon_inside", default=())
"""Whose effects or memos this code runs in. Child tasks and threads inherit it."""


@contextlib.contextmanager
def inside(mark: object, key: str) -> Generator[None]:
    """Mark the code below, and all that it starts, as an effect or memo."""
    token = _inside.set((*_inside.get(), (mark, key)))
    try:
        yield
    finally:
        _inside.reset(token)


get_inside = _inside.get
"""Whose effects or memos this code runs in; empty for nearly all code."""


def key_inside(mark: object) -> str | None:
    """Return the key of the effect or memo that this code runs in, or None."""
    for owner, key in _inside.get():
        if owner is mark:
            return key
    return None


def cancelled_from_inside() -> bool:
    """Return whether a `CancelledError` that came up here is not a cancellation of this task."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


running_loop = asyncio._get_running_loop  # pyright: ignore[reportPrivateUsage] - documented
"""Return the event loop of this thread, or None."""


def in_thread() -> bool:
    """Return whether this is a thread of its own, where nothing can be awaited."""
    return running_loop() is None


# --- calling ------------------------------------------------------------------------------------


async def call_user(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Call a function of the author's: async ones here, others in a thread.

    Raises:
        UserCodeExit: It raised what is no `Exception`.
    """
    kwargs = kwargs or {}
    guard_child_tasks(asyncio.get_running_loop())
    mark = in_user_code.set(True)
    try:
        if is_async(fn):
            return await fn(*args, **kwargs)
        value = await call_in_thread(fn, *args, **kwargs)
        return await value if inspect.isawaitable(value) else value
    except Exception:
        raise
    except GeneratorExit as error:
        mark = None  # perhaps the collector ends this in another context
        raise _as_failure(error) from error
    except BaseException as error:
        raise _as_failure(error) from error
    finally:
        if mark is not None:
            in_user_code.reset(mark)


def call_in_thread(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
    """Call a function of the author's in a thread.

    `StopIteration` cannot be raised into a future (on Python 3.11 the caller would wait for ever),
    and `GeneratorExit` out of one looks as if the caller were closed.
    """

    def call() -> Any:
        try:
            return fn(*args, **kwargs)
        except (StopIteration, GeneratorExit) as error:
            raise UserCodeExit(error) from error

    return asyncio.to_thread(call)


def _as_failure(error: BaseException) -> BaseException:
    """Return what user code raised as an `Exception`, unless it only lets a signal pass."""
    signal = any(holds(error, kind) for kind in _SIGNALS)
    return error if signal else UserCodeExit(error)


@types.coroutine
def run_user_code(
    handler: Awaitable[Any], unwindable: Callable[[], BaseException | None]
) -> Generator[Any, Any, Any]:
    """Await a handler; leave it with the error that `unwindable` returns once it cannot be unwound.

    Raises:
        UserCodeExit: It raised what is no `Exception`.
    """
    # Nearly always it is a coroutine itself; the abstract class is slow to say so.
    if type(handler) is types.CoroutineType or isinstance(handler, Coroutine):
        inner = cast("Coroutine[Any, Any, Any]", handler)
    else:
        inner = _as_coroutine(handler)
    step: Any = inner.send
    value: Any = None
    while True:
        try:
            yielded = step(value)
        except StopIteration as stop:
            return stop.value
        except (Exception, *_SIGNALS):
            raise
        except BaseException as error:
            raise _as_failure(error) from error
        error = unwindable() if yielded is _ABORT else None
        if error is None:
            try:
                value = yield yielded
                step = inner.send
                continue
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - handed on to the handler as it is
                error = unwindable()
                value = thrown
                step = inner.throw
        if error is not None:
            with contextlib.suppress(RuntimeError):
                inner.close()  # it may ignore even that; nobody runs it any more
            raise error


async def _as_coroutine(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


@types.coroutine
def abort_handler() -> Generator[Any, Any, None]:
    """Leave the handler, from its own task: it cannot be unwound."""
    yield _ABORT


async def block_forever() -> None:
    """Keep a branch that swallows everything from spinning. It never returns."""
    await asyncio.get_running_loop().create_future()


# --- what came out ------------------------------------------------------------------------------


def user_error(
    error: BaseException, is_ours: Callable[[BaseException], bool]
) -> BaseException | None:
    """Return what is not the end of a round of ours; a group is ours if everything in it is.

    What would end the process has only failed (a serializer of the author's may raise it).
    """
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        exit = UserCodeExit(error)
        exit.__cause__ = error
        return exit
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        # Python 3.11 takes a function here, and no method.
        return group.split(lambda one: is_ours(one))[1]
    return None if is_ours(error) else error


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
