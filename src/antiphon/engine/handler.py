"""What a registered tool, prompt or resource is: its function, its options, how it is called.

Compiled once at registration. Also the caching hints that results carry (CACHE-01), and the call of
any function of an author's.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

from antiphon.engine.child_tasks import UserCodeExit, as_failure, guard_child_tasks, in_user_code
from antiphon.errors import ArgumentsInvalid, ConfigError
from antiphon.protocol.asks import (
    Approve,
    Ask,
    Elicit,
    ElicitUrl,
    ListRoots,
    Sample,
    Seconds,
    seconds,
)
from antiphon.protocol.capabilities import Capability, require
from antiphon.protocol.request import Request

HandlerKind = Literal["tool", "prompt", "resource"]
Invoke: TypeAlias = Callable[[Any, dict[str, Any]], Any]
"""Run a handler with its context and arguments; returns what to await, mostly a coroutine."""

_NEEDS: Mapping[type[Ask], tuple[Capability, ...]] = {
    Elicit: ("form",),
    ElicitUrl: ("url",),
    Sample: ("sampling",),
    ListRoots: ("roots",),
    Approve: ("form",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a decorator may say about a handler's calls."""

    version: str = ""
    """Of the handler's code; kept in tokens and task rows."""

    on_version_change: Literal["refuse", "restart"] = "refuse"
    """What happens to a running call of another version: `restart` begins it again with nothing but
    the results of its effects."""

    asks: Sequence[type[Ask]] = ()
    """What the handler will ask, so that a client without it is refused before the first line."""

    unasked: Literal["ignore", "accept"] = "ignore"
    """Whether `ctx.answers` shows answers that came with the first request."""

    anchor: bool = False
    """End round one before its first effect, so that each effect runs in a claimed round."""

    settle: float = 0.025
    """Seconds without a new ask after which a round with concurrent branches ends."""

    ttl: Seconds | None = None
    """How long a token of this handler can be redeemed."""

    deadline: Seconds | None = None
    """How long a whole call may take."""

    park: Seconds | None = None
    """How long a waiting handler is kept in memory for its next round."""

    restarts: Literal["adopt"] | None = None
    """Whether a caller that begins the same call again goes on with the one it left unfinished."""

    restart_key: Callable[[Mapping[str, Any]], str | None] | None = None
    """Names the caller by the arguments, where callers are not authenticated."""

    task: Literal["allowed", "required"] | None = None
    """Whether calls are tasks from their start; `required` refuses clients without tasks."""

    task_ttl: Seconds | None = None
    """How long a task and its result are kept."""

    detach: Literal["refuse"] | None = None
    """Refuse clients without tasks before the first line, instead of going on in the call."""

    holds: bool | Callable[[Mapping[str, Any]], object] = False
    """Whether a call may wait for somebody's decision, so that a repeated one finds it; a function
    names what counts of the arguments."""

    approve: Approve | None = None
    """Asked before the handler's first line."""

    max_concurrent: int | None = None
    """How many of this tool's tasks one process runs at a time."""

    unable: str | None = None
    """What a client that cannot be asked is told instead of an error of the protocol."""

    def __post_init__(self) -> None:
        """Refuse options that do not fit, naming the option."""
        check_choice("on_version_change", self.on_version_change, ("refuse", "restart"))
        check_choice("unasked", self.unasked, ("ignore", "accept"))
        check_choice("task", self.task, (None, "allowed", "required"))
        check_choice("detach", self.detach, (None, "refuse"))
        check_choice("restarts", self.restarts, (None, "adopt"))
        for ask in self.asks:
            if ask not in _NEEDS:
                raise ConfigError("asks= takes Elicit, ElicitUrl, Sample and ListRoots")
        if self.approve is not None:
            if not isinstance(self.approve, Approve):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError("approve= takes Approve(...)")
            object.__setattr__(self, "holds", self.holds or self.approve.uses_inbox)
        if self.holds and (self.restarts is not None or self.task is not None):
            raise ConfigError(
                "holds= and approve= find a repeated call, and go on as a task, by themselves: "
                "leave restarts= and task= out"
            )
        if self.restart_key is not None and self.restarts is None:
            raise ConfigError('restart_key= needs restarts="adopt"')
        if self.restart_key is not None and not callable(self.restart_key):
            raise ConfigError("restart_key= takes a function from the arguments to a text")
        if self.max_concurrent is not None and self.max_concurrent < 1:
            raise ConfigError("max_concurrent= must be at least one")
        if self.unable is not None and not self.unable.strip():
            raise ConfigError("unable= takes the text that a client is told which cannot be asked")
        _check_span("ttl", self.ttl)
        _check_span("deadline", self.deadline)
        _check_span("park", self.park)
        _check_span("settle", self.settle)
        _check_span("task_ttl", self.task_ttl)

    def needs(self, declared: Sequence[Capability] = ()) -> tuple[Capability, ...]:
        """Return what a client must have before the first line runs.

        Args:
            declared: What the handler's steps or resolvers declare to ask.
        """
        found: list[Capability] = [*(need for ask in self.asks for need in _NEEDS[ask]), *declared]
        if self.unable is not None and not found:
            found = ["form"]
        if self.task == "required" or self.detach == "refuse":
            found.append("tasks")
        return tuple(dict.fromkeys(found))


def check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    """Refuse a setting that is none of its choices, naming them."""
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is none of {', '.join(map(repr, allowed))}")


def _check_span(name: str, span: Seconds | None) -> None:
    try:
        positive = span is None or seconds(span) > 0
    except (TypeError, ValueError):
        raise ConfigError(f"{name}={span!r} is neither seconds nor a timedelta") from None
    if not positive:
        raise ConfigError(f"{name}= must be greater than zero")


def needs_of(ask: type[Ask] | Ask) -> tuple[Capability, ...]:
    """Return what an ask, or every ask of a type, needs of the client."""
    type_ = ask if isinstance(ask, type) else type(ask)
    needs = _NEEDS.get(type_)
    if needs is None:
        raise ConfigError("use Elicit, ElicitUrl, Sample or ListRoots")
    if isinstance(ask, Sample) and (ask.tools is not None or ask.tool_choice is not None):
        return (*needs, "sampling.tools")
    return needs


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """How long a client may keep a result, and whether it may share it."""

    ttl: Seconds = 0.0
    scope: Literal["public", "private"] = "private"

    def __post_init__(self) -> None:
        """Refuse hints that no client could follow."""
        if self.scope not in ("public", "private"):
            raise ConfigError('CachePolicy(scope=...) is "public" or "private"')
        if not self._milliseconds() >= 0:
            raise ConfigError("CachePolicy(ttl=...) must not be negative")

    def _milliseconds(self) -> int:
        span = self.ttl.total_seconds() if isinstance(self.ttl, timedelta) else self.ttl
        return round(span * 1000)

    def for_one_caller(self) -> "CachePolicy":
        """Return the same for what other callers may not see: it is not shared."""
        return CachePolicy(self.ttl, "private")

    def members(self) -> bytes:
        """Return the members as JSON, with a comma before them."""
        return b',"ttlMs":%d,"cacheScope":"%s"' % (self._milliseconds(), self.scope.encode())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handler:
    """A registered handler."""

    kind: HandlerKind
    name: str
    """Tool or prompt name; URI or URI template of a resource."""

    fn: Callable[..., Any]
    bind: Callable[[Mapping[str, Any] | None], dict[str, Any]]
    """Raw arguments to keyword arguments of the function; raises `ArgumentsInvalid`."""

    schema: Callable[[], dict[str, Any]]
    """The JSON schema of the arguments."""

    invoke: Invoke
    write: Callable[..., bytes]
    options: Options = field(default_factory=Options)
    is_async: bool = True
    needs: tuple[Capability, ...] = ()
    """What a client must have before the first line runs."""

    check: Callable[[Mapping[str, Any]], Awaitable[list[str]]] | None = None
    """Reasons why raw arguments do not fit a given input schema."""

    legacy: "Handler | None" = None
    """Serves clients of legacy sessions in its place."""

    on_cancel: Callable[..., Any] | None = None
    """Runs as an effect when a task of this tool is cancelled."""

    identity: str = ""
    """What tokens are bound to; set from kind and name."""

    parks: bool = False
    """Whether it is kept in memory between its rounds; set from its options."""

    guarded: bool = False
    """Whether a request is checked against it before it is run; set from what it declares."""

    def __post_init__(self) -> None:
        """Derive the identity."""
        object.__setattr__(self, "identity", f"{self.kind}:{self.name}")
        guarded = bool(self.needs) or self.check is not None
        object.__setattr__(self, "guarded", guarded)
        object.__setattr__(self, "parks", self.options.park is not None and self.is_async)

    def with_legacy(self, other: "Handler") -> "Handler":
        """Return the same handler with a second one for old clients."""
        return replace(self, legacy=other)

    def with_on_cancel(self, undo: Callable[..., Any]) -> "Handler":
        """Return the same handler with an effect for cancelled tasks."""
        return replace(self, on_cancel=undo)

    async def check_request(self, request: Request, arguments: Mapping[str, Any] | None) -> None:
        """Check what it declares to need, and its own input schema, before its first line runs.

        Raises:
            CapabilityMissing: The client cannot be asked what the handler declares to ask.
            ArgumentsInvalid: The arguments do not fit.
        """
        require(request.capabilities, self.needs, f"{self.kind} {self.name!r}")
        wrong = await self.check(arguments or {}) if self.check is not None else None
        if wrong:
            raise ArgumentsInvalid(wrong)

    @property
    def needs_tasks(self) -> bool:
        """Whether a client that cannot take tasks is refused before the first line."""
        return "tasks" in self.needs


class Handlers(Protocol):
    """Where the engine finds handlers."""

    def find(self, request: Request, /) -> tuple[Handler, Mapping[str, Any] | None]:
        """Return the handler of a call and its raw arguments, or raise `InvalidRequest`."""
        ...


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether calling a function returns something to await."""
    inner = fn
    while isinstance(inner, partial):
        inner = inner.func
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - objects with an async __call__
    )


# --- calling functions of authors --------------------------------------------------------------


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
        raise as_failure(error) from error
    except BaseException as error:
        raise as_failure(error) from error
    finally:
        if mark is not None:
            in_user_code.reset(mark)


async def call_to_end(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Call a function of the author's; that it was cancelled from inside is its failure, too."""
    try:
        return await call_user(fn, args, kwargs)
    except asyncio.CancelledError as error:
        if cancelled_from_inside():
            raise UserCodeExit(error) from error
        raise


def call_here(fn: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the author's that waits for nothing.

    Raises:
        UserCodeExit: It raised what is no `Exception`.
    """
    try:
        return fn(*args)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise UserCodeExit(error) from error


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


def cancelled_from_inside() -> bool:
    """Return whether a `CancelledError` that came up here is not a cancellation of this task."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()
