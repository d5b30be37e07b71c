"""Awaiting a stranger's coroutine: the power to leave one that swallows every end of its round, the
mark of code that runs inside an effect, and what an exception is made of. Knows no journal, no ask.
"""

import asyncio
import contextlib
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, cast

from antiphon.engine.signals import Suspended

_GIVE_UP = object()

_CHAIN = 32
"""How far back the chain of an exception is followed."""

_inside: ContextVar[tuple[tuple[object, str], ...]] = ContextVar("antiphon_inside", default=())
"""Whose effects or memos this code runs in. Child tasks and threads inherit it."""


@contextlib.contextmanager
def inside(mark: object, key: str) -> Generator[None]:
    """Mark the code below, and all that it starts, as an effect or memo (S5-5)."""
    token = _inside.set((*_inside.get(), (mark, key)))
    try:
        yield
    finally:
        _inside.reset(token)


def key_inside(mark: object) -> str | None:
    """Give the key of the effect or memo that this code runs in, or None."""
    for owner, key in _inside.get():
        if owner is mark:
            return key
    return None


def foreign_in(
    error: BaseException, is_ours: Callable[[BaseException], bool]
) -> BaseException | None:
    """Give what is not the end of a round of ours; a group is ours if everything in it is."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        # Python 3.11 takes a function here, and no method.
        return group.split(lambda one: is_ours(one))[1]
    return None if is_ours(error) else error


def in_thread() -> bool:
    """Tell whether this is a thread of its own, where nothing can be awaited."""
    return asyncio._get_running_loop() is None  # pyright: ignore[reportPrivateUsage] - documented


@types.coroutine
def give_up() -> Generator[Any, Any, None]:
    """Tell the driver, from the handler's own task, that it cannot be unwound."""
    yield _GIVE_UP


async def stand_still() -> None:
    """Keep a branch that swallows everything from spinning. It never comes back."""
    await asyncio.get_running_loop().create_future()


@types.coroutine
def drive(
    handler: Awaitable[Any], hopeless: Callable[[], BaseException | None]
) -> Generator[Any, Any, Any]:
    """Await a handler; leave it with the error that `hopeless` gives once it cannot be unwound."""
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
        error = hopeless() if yielded is _GIVE_UP else None
        if error is None:
            try:
                value = yield yielded
                step = inner.send
                continue
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - handed on to the handler as it is
                error = hopeless()
                value = thrown
                step = inner.throw
        if error is not None:
            with contextlib.suppress(RuntimeError):
                inner.close()  # it may ignore even that; nobody runs it any more
            raise error


async def _as_coroutine(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


# --- what came out ------------------------------------------------------------------------------


def holds(error: BaseException, kind: type[BaseException]) -> bool:
    """Tell whether an error is of a kind, or a group that holds one."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kind) is not None  # pyright: ignore[reportUnknownMemberType]
    return isinstance(error, kind)


def made_of_an_end(error: BaseException) -> bool:
    """Tell whether an error was raised while a round's end was handled: converted, or in cleanup.

    One that was not is a branch's own failure in the same moment, and wins.
    """
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return any(map(made_of_an_end, group.exceptions))
    seen: BaseException | None = error
    for _ in range(_CHAIN):
        if seen is None or isinstance(seen, (Suspended, asyncio.CancelledError)):
            break
        seen = seen.__cause__ or seen.__context__
    return seen is not None
