"""Mistakes that authors make with a context, and what they are told."""

import asyncio
import inspect
import logging
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from antiphon.engine.child_tasks import coroutine_of
from antiphon.engine.raised import raised_in_branch
from antiphon.errors import (
    DELIBERATE,
    AntiphonError,
    CannotAsk,
    CapabilityMissing,
    Diverged,
    HandlerError,
)
from antiphon.protocol.asks import TOOL_APPROVAL, Approval, ElicitOptions, SoFar
from antiphon.protocol.capabilities import missing, required
from antiphon.protocol.request import LEVELS
from antiphon.protocol.shapes import ShapeError, check_number, check_text, write_json

if TYPE_CHECKING:
    from antiphon.engine.execution import Execution
    from antiphon.engine.questions import Question
    from antiphon.protocol.journal import Entry

log: logging.Logger = logging.getLogger("antiphon")


def needs_async(handler: str, what: str) -> CannotAsk:
    """Return the refusal of what only an `async` handler can do."""
    return CannotAsk(
        f"ctx.{what} needs an async handler: a function of {handler!r} runs in a thread, where a "
        "round cannot end. Write `async def`."
    )


def called_too_late(what: str) -> CannotAsk:
    """Return the refusal of a call on the context of a call that has ended."""
    return CannotAsk(
        f"ctx.{what} was called after its call had ended: a task outlived the handler. Await it "
        "inside the handler."
    )


caller: Callable[[int], FrameType] = sys._getframe  # pyright: ignore[reportPrivateUsage]
"""Return the frame so many calls up."""

Place: TypeAlias = tuple[CodeType, int]
"""A code, and the number of an instruction in it."""

place_of: Callable[[FrameType], Place] = attrgetter("f_code", "f_lasti")
"""Return where a frame is."""

HandedOut: TypeAlias = tuple[str, Place]
"""The method of the context that was called, and where."""


def check_returned(execution: "Execution") -> None:
    """Refuse the end of a handler that has left something undone, or recorded entries unread."""
    branches = execution.branches
    check_awaited(execution.calls)
    check_begun(execution.calls)
    if branches is not None:
        check_claimed(branches.unclaimed)
    execution.replay.check_end(
        branches_cut=branches is not None and branches.any_cancelled,
        later={f"commit:{key}" for key in execution.commits},
        now="" if branches is None else branches.new,
    )


def check_awaited(calls: Mapping[Coroutine[Any, Any, Any], HandedOut], since: int = 0) -> None:
    """Refuse a handler that forgot to await what the context handed out.

    Args:
        calls: What was handed out.
        since: How many of them are not looked at, because they were handed out to others.
    """
    forgotten = unawaited(calls, since)
    if forgotten is not None:
        raise forgotten


def check_begun(calls: Mapping[Coroutine[Any, Any, Any], HandedOut]) -> None:
    """Refuse the end of a handler that left an effect to a task which has not even begun it.

    The context is dead when the task would, and the effect would be missing without a word. One
    that the author has cancelled is not meant to happen.
    """
    for task in asyncio.all_tasks():
        made = coroutine_of(task)
        name, place = calls.get(made, ("", None))
        if name != "once" or task.cancelling() or made.cr_suspended or made.cr_frame is None:
            continue
        assert place is not None
        code, line = place[0], _line(place)
        error = HandlerError(
            f"ctx.once(...) in line {line} of {code.co_name} was left to a task that had not begun "
            "when the handler returned, so that it never happened. Await the task."
        )
        error.place = f"{code.co_filename}:{line}"
        raise error


def check_claimed(unclaimed: "Mapping[str, asyncio.Task[Any] | None]") -> None:
    """Refuse the end of a handler that left an effect to a task which has not yet claimed it."""
    for key, task in unclaimed.items():
        if task is None or task.cancelling() or task.done():
            continue
        raise HandlerError(
            f"ctx.once({key!r}, ...) was left to a task that had not claimed the effect when the "
            "handler returned, so that it never happened. Await the task."
        )


def unawaited(
    calls: Mapping[Coroutine[Any, Any, Any], HandedOut], since: int = 0
) -> HandlerError | None:
    """Return the error about the first thing that was handed out and never awaited, if any."""
    for coroutine in _not_begun(islice(calls, since, None)):
        name, place = calls[coroutine]
        code, line = place[0], _line(place)
        error = HandlerError(
            f"ctx.{name}(...) was not awaited in line {line} of {code.co_name}, so that it never "
            f"happened. Write `await ctx.{name}(...)`."
        )
        error.place = f"{code.co_filename}:{line}"
        return error
    return None


def close_unawaited(calls: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Close what a round that has ended will not await any more; the next one makes it anew."""
    for coroutine in _not_begun(calls):
        coroutine.close()


def _not_begun(calls: Iterable[Coroutine[Any, Any, Any]]) -> Iterator[Coroutine[Any, Any, Any]]:
    """Iterate over what nobody has begun to await, nor any task will."""
    owned: set[int] | None = None
    for coroutine in calls:
        made: Any = coroutine
        if made.cr_frame is None or made.cr_running or made.cr_suspended:
            continue
        if owned is None:
            owned = {id(coroutine_of(task)) for task in asyncio.all_tasks()}
        if id(coroutine) not in owned:
            yield coroutine


def _line(place: Place) -> int:
    code, instruction = place
    lines = [line for start, end, line in code.co_lines() if start <= instruction < end and line]
    return lines[0] if lines else code.co_firstlineno


def explained(execution: "Execution", error: Exception) -> Exception:
    """Return what an author is told of an exception that came out of the handler.

    It may have been caused by a mistake with the context. An error that is over with the round is
    no other end than a result: what was recorded must have been read.
    """
    found: HandlerError | None = None
    if not isinstance(error, AntiphonError):
        found = unawaited(execution.calls)
        if found is None and isinstance(error, TypeError):
            found = _wrong_call(str(error))
    elif execution.replay.unread and isinstance(error, DELIBERATE):
        found = _unread(execution, error)
    if found is not None:
        found.__cause__ = error
    return found or error


def _unread(execution: "Execution", error: Exception) -> Diverged | None:
    """Return the error of a handler that ended before it had read what was recorded.

    Not after an error in a branch: that has ended the others early, and the handler's own task with
    them. Whatever is not over with the round is tried again anyway.
    """
    if raised_in_branch(error):
        return None
    try:
        execution.replay.check_end(branches_cut=True, later=set())
    except Diverged as found:
        return found
    return None


def _wrong_call(text: str) -> HandlerError | None:
    """Return what is wrong with a call of the context, by the words of Python for it."""
    name, paren, wrong = text.partition("() ")
    owner, _, method = name.rpartition(".")
    if owner not in ("Context", "ContextBase") or not paren:
        return None
    return HandlerError(f"ctx.{method}() {wrong}. help(Context.{method}) says what it takes.")


def check_options(what: str, given: Mapping[str, Any], takes: Any) -> None:
    """Refuse an option that a call of the context does not have, naming those that it has."""
    known: frozenset[str] = takes.__optional_keys__
    unknown = given.keys() - known
    if unknown:
        raise HandlerError(
            f"ctx.{what} has no option {', '.join(sorted(unknown))}. It takes key, "
            f"{', '.join(sorted(known))}."
        )


def form_missing(given: Mapping[str, Any]) -> HandlerError:
    """Return the error of `ctx.elicit` without a form, naming what was written in its place."""
    instead = ", ".join(f"{name}=" for name in given if name not in ElicitOptions.__optional_keys__)
    found = f" ({instead} is none of its options)" if instead else ""
    return HandlerError(
        f"ctx.elicit has no form{found}: give it as the second argument, "
        "`await ctx.elicit(message, Form)`, a model with a field for each answer. For a yes or no, "
        "write `await ctx.approve(message)`."
    )


def check_report(progress: object, total: object, message: object) -> None:
    """Refuse progress that no client could read, naming the argument."""
    try:
        check_number(progress, "ctx.report(progress)")
        if total is not None:
            check_number(total, "ctx.report(total=...)")
        if message is not None:
            check_text(message, "ctx.report(message=...)")
    except ShapeError as error:
        raise HandlerError(str(error)) from None


def check_log(data: object, level: object, logger: object) -> None:
    """Refuse a log message that no client could read, naming the argument."""
    try:
        write_json(data, "ctx.log(data)")
        if logger is not None:
            check_text(logger, "ctx.log(logger=...)")
    except ShapeError as error:
        raise HandlerError(str(error)) from None
    if level not in LEVELS:
        raise HandlerError(f"ctx.log(level={level!r}) is none of {', '.join(LEVELS)}")


def check_asks(wrong: Sequence[object], asks: Mapping[str, object]) -> None:
    """Refuse what is given to `ctx.gather` in place of asks with names."""
    made = [one for one in (*wrong, *asks.values()) if inspect.isawaitable(one)]
    for one in made:
        if isinstance(one, Coroutine):
            one.close()
    if wrong or made:
        raise HandlerError(
            "ctx.gather takes asks by name and asks them itself: ctx.gather(place=Elicit(...), "
            "idea=Sample(...)), not ctx.gather(ctx.elicit(...))."
        )
    if not asks:
        raise HandlerError("ctx.gather needs at least one ask: ctx.gather(place=Elicit(...))")


def check_function(what: str, key: object, fn: object) -> None:
    """Refuse what cannot be called, before it is claimed and fails for good."""
    if callable(fn) and isinstance(key, str):
        return
    if inspect.iscoroutine(fn):
        fn.close()  # it was never going to be awaited
    raise HandlerError(
        f"ctx.{what} takes a key, a function and its arguments, and calls the function itself: "
        f'ctx.{what}("create", create, name), not ctx.{what}(create(name)).'
    )


def check_secret(execution: "Execution", kind: str, key: str, *, secret: bool) -> None:
    """Refuse a secret that could be kept nowhere but in the token."""
    if secret and not execution.environment.spill and execution.request.era == "modern":
        raise HandlerError(
            f"{kind} {key!r} is secret=True, so its value must stay out of the token, and this "
            "server has no store to keep it in. Give Server(store=...) one."
        )


def unable_to_ask(execution: "Execution", asked: "Sequence[Question]") -> CapabilityMissing:
    """Return the error that names everything that the client lacks for what is asked now."""
    handler, capabilities = execution.handler, execution.request.capabilities
    lacking = missing(capabilities, [need for ready in asked for need in ready.needs])
    what = f"{handler.kind} {handler.name!r}"
    acted = has_acted(execution.replay.entries())
    return CapabilityMissing(required(lacking), what, acted=acted, begun=True)


def unable_to_ask_later(execution: "Execution") -> CapabilityMissing:
    """Return the error of a held call that asks its client, which cannot be asked any more."""
    what = f"a question of tool {execution.handler.name!r} after its approval"
    acted = has_acted(execution.replay.entries())
    return CapabilityMissing(required(("tasks",)), what, acted=acted, begun=True)


def so_far(entries: "Iterable[Entry]", key: str = "") -> SoFar:
    """Return how far a call has come that waits for the answer to a question, by its key."""
    if has_acted(entries):
        return "acted"
    return "nothing" if key == TOOL_APPROVAL else "begun"


def has_acted(entries: "Iterable[Entry]") -> bool:
    """Return whether a journal records an effect."""
    return any(entry.kind == "effect" for entry in entries)


def too_many_asks(limit: int) -> HandlerError:
    """Return the refusal of a round that asks for too much at once."""
    return HandlerError(
        f"more than {limit} asks in one round: ask for less at a time, or raise "
        "Limits(asks_per_round=...)"
    )


class RerunNotice:
    """Tells authors, once for each handler, that its lines run again in every round."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, handler: str) -> None:
        """Log it when a handler is run again for the first time."""
        if handler not in self._told:
            self._told.add(handler)
            log.info(
                "%s runs again from its first line in every round: what it does above its last "
                "question happens again, except in ctx.once and ctx.memo",
                handler,
            )


class NothingToAwait:
    """What an optional `await` waits for: nothing."""

    def __await__(self) -> Any:
        """Return at once."""
        return None
        yield


class ApprovalAwaitable(Coroutine[Any, Any, Approval]):
    """What `ctx.approve` returns: it has no truth before it is awaited.

    `if ctx.approve(...)` without `await` would find a coroutine, and every coroutine is true.
    """

    __slots__ = ("_inner",)

    def __init__(self, inner: Coroutine[Any, Any, Approval]) -> None:
        self._inner = inner

    def __bool__(self) -> bool:
        """Refuse to be taken for a yes."""
        self._inner.close()
        raise HandlerError(
            "ctx.approve was not awaited, so nobody was asked. Write `if await ctx.approve(...)`."
        )

    def __await__(self) -> Generator[Any, Any, Approval]:
        """Ask, and wait for the answer."""
        return self._inner.__await__()

    def send(self, value: Any, /) -> Any:
        """Go on, as the coroutine does."""
        return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise inside, as the coroutine does."""
        return self._inner.throw(*error)

    def close(self) -> None:
        """End it, as the coroutine does."""
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        """Return what task groups look at in a coroutine (`cr_running` and its like)."""
        return getattr(self._inner, name)
