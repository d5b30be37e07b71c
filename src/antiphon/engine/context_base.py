"""What a handler does with its context besides asking: read, remember, act, tell the client.

What must be the same in every round (time, randomness, what the client can) is kept in the journal,
or derived from the seed of the call, when it is first read.

Methods that wait are plain functions that return something to await: a handler running in a thread
is refused at once, and the execution knows what it has handed out and was never awaited.
"""

import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from functools import partial, wraps
from hashlib import blake2b
from typing import Any, Concatenate, ParamSpec, TypeVar

from antiphon.engine.child_tasks import running_loop
from antiphon.engine.effects.names import Once, Scope
from antiphon.engine.effects.once import memo, once
from antiphon.engine.execution import Execution
from antiphon.engine.handler import needs_of
from antiphon.engine.mistakes import (
    NothingToAwait,
    caller,
    check_function,
    check_log,
    check_report,
    needs_async,
    place_of,
)
from antiphon.engine.native import CallAnswers, read_only, read_state
from antiphon.engine.questions import check_key
from antiphon.errors import HandlerError, KeyReused
from antiphon.protocol.asks import Ask, Seconds, seconds
from antiphon.protocol.capabilities import allows, declares, missing
from antiphon.protocol.effect_ends import unknown_types
from antiphon.protocol.journal import Entry, decode_value, encode_value
from antiphon.protocol.journal_index import PATCHED
from antiphon.protocol.request import Era, LogLevel, Principal

C = TypeVar("C", bound="ContextBase")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_YES = encode_value(True)


def handed_out(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, R]]:
    """Note each coroutine of a method, so that one which nobody awaits is found."""

    @wraps(method)
    def noted(self: C, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self._awaited(method.__name__, method(self, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return noted


class CallView:
    """What is known of a call in one of its rounds, whoever looks at it."""

    __slots__ = ("_execution",)

    _execution: Execution

    @property
    def round(self) -> int:
        """The number of this round; the first is 1."""
        return self._execution.call.round

    @property
    def principal(self) -> Principal:
        """Who is calling, as the transport authenticated it."""
        return self._execution.request.principal


class ContextBase(CallView):
    """The part of a context that asks nothing."""

    __slots__ = ("_first_reads",)

    _first_reads: Mapping[str, Any]
    """What may differ between rounds, as it was first read in this one."""

    @property
    def call_id(self) -> str:
        """The call's own id: the same in every round."""
        return self._execution.call.id

    # --- time and randomness ---------------------------------------------------------------------

    def now(self, *, key: str | None = None) -> datetime:
        """The time, in UTC, as it was when this line was first reached."""
        execution = self._execution
        execution.enter("now")
        key = "now:" + execution.key_for("now", key)
        entry = execution.replay.seen("memo", key)
        if entry is None:
            execution.check_new("memo", key, "ctx.now")
            entry = execution.take_kept(key) or execution.record(
                Entry("memo", key, encode_value(execution.environment.clock()))
            )
        return datetime.fromtimestamp(entry.value(), UTC)

    def uuid(self, *, key: str | None = None) -> uuid.UUID:
        """A random UUID that is the same in every re-run."""
        return uuid.UUID(bytes=self._random("uuid", key)[:16], version=4)

    def random(self, *, key: str | None = None) -> float:
        """A random number in [0, 1) that is the same in every re-run."""
        return (int.from_bytes(self._random("random", key)[:7], "big") >> 3) / 2**53

    def _random(self, what: str, key: str | None) -> bytes:
        execution = self._execution
        execution.enter(what)
        name = f"{what} {execution.key_for(what, key)}"
        if name in self._first_reads:
            raise execution.fault(KeyReused(f"ctx.{what}", name.removeprefix(f"{what} ")))
        self._first_reads = {**self._first_reads, name: True}
        return blake2b(name.encode(), key=execution.call.seed, digest_size=32).digest()

    # --- what the client can, and what the code is -----------------------------------------------

    def can(self, ask: type[Ask] | Ask) -> bool:
        """Return whether this client can be asked; the same in every round."""
        needs = needs_of(ask)
        capabilities = self._execution.request.capabilities
        what = "can:" + "+".join(needs)
        return bool(self._first_read(what, lambda: not missing(capabilities, needs)))

    @property
    def can_ask(self) -> bool:
        """Whether this client can be asked for anything at all."""
        has = self._execution.request.capabilities
        kinds: tuple[Any, ...] = ("form", "url", "sampling", "roots")
        return bool(self._first_read("can_ask", lambda: any(allows(has, n) for n in kinds)))

    def supports(self, extension: str) -> bool:
        """Return whether this client declared an extension; the same in every round.

        Args:
            extension: Its id, such as `com.example/audit`. Those of the protocol itself may be
                named without their prefix: `ctx.supports("tasks")`.
        """
        if not isinstance(extension, str) or not extension:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise HandlerError("ctx.supports takes the id of an extension, such as 'tasks'")
        capabilities = self._execution.request.capabilities
        what = f"supports:{extension}"
        return bool(self._first_read(what, lambda: declares(capabilities, extension)))

    @property
    def in_task(self) -> bool:
        """Whether this run of the handler is one of a task: nobody waits for its end.

        False in the rounds before `ctx.detach`, True after it: what a handler asks or does must
        not depend on it.
        """
        return self._execution.delivery.background

    @property
    def meta(self) -> Mapping[str, Any]:
        """The `_meta` of this request, read-only; empty in a task, which no request waits for.

        The client chose it, and may send another one in each round: keep what a decision depends
        on with `ctx.memo`.
        """
        request = self._execution.request
        raw = request.encoded_meta
        found: dict[str, Any] = decode_value(raw) if raw else request.params.get("_meta") or {}
        return read_only(found)

    @property
    def era(self) -> Era:
        """`modern` or `legacy`."""
        return self._first_read("era", lambda: self._execution.request.era)

    @property
    def protocol_version(self) -> str:
        """The revision that the client speaks."""
        return self._first_read("version", lambda: self._execution.request.version)

    def _first_read(self, what: str, read: Callable[[], Any]) -> Any:
        """Keep what may differ between rounds as it was first read."""
        execution = self._execution
        execution.enter(what)
        known = self._first_reads.get(what)
        if known is None:
            entry = execution.replay.seen("memo", f"ctx.{what}")
            if entry is None:
                entry = execution.record(Entry("memo", f"ctx.{what}", encode_value(read())))
            known = entry.value()
            self._first_reads = {**self._first_reads, what: known}
        return known

    def patched(self, id: str) -> bool:
        """Let code change under running calls: False in a call that came past here before."""
        execution = self._execution
        execution.enter("patched")
        key = PATCHED + check_key(id)
        known = self._first_reads.get(key)
        if known is None:
            # The first answer holds for the whole execution: a loop must not change sides.
            marked = execution.replay.seen("patch", key) is not None
            known = marked or not _behind(execution)
            self._first_reads = {**self._first_reads, key: known}
            if known and not marked:
                execution.record(Entry("patch", key, _YES))
        return known

    # --- remembering and acting ------------------------------------------------------------------

    @handed_out
    async def once(
        self,
        key: str,
        fn: Callable[..., Awaitable[T]] | Callable[..., T],
        *args: Any,
        retry: bool = False,
        verify: Callable[..., Any] | None = None,
        scope: Scope = "call",
        window: Seconds | None = None,
        scope_key: str | None = None,
        unknown_after: type[Exception] | tuple[type[Exception], ...] = (),
        returns: Any = None,
    ) -> T:
        """Do something once, however often the code re-runs; returns its recorded result.

        Args:
            key: Names the effect in this call.
            fn: The function that acts; called with `args`, and with `idempotency_key=` if it takes
                one.
            args: Its arguments.
            retry: It may be called again with the same idempotency key: a few times at once if it
                raises, and after a crash.
            verify: Called like `fn` when the process died in the middle of the effect, and when
                `fn` raised anything but `NotDone`: returns the result if it happened, raises
                `NotDone` if it did not.
            scope: `arguments` shares the result between calls of one caller.
            window: How long a shared result counts.
            scope_key: Tells apart callers that are not authenticated.
            unknown_after: Your exceptions after which it may have happened, beside time-outs and
                lost connections.
            returns: The type of the result, where the annotation does not say it.

        Raises:
            EffectFailed: It raised; the same in every execution.
            NotDone: Nothing happened, and it may be tried again.
            EffectUncertain: It was started and its end is not known: it may have happened.
        """
        check_function("once", key, fn)
        spec = Once(
            key=key,
            fn=fn,
            args=args,
            retry=retry,
            verify=verify,
            scope=scope,
            window=window,
            scope_key=scope_key,
            unknown_after=unknown_types(unknown_after),
            returns=returns,
        )
        return await once(self._execution, spec)

    def reused(self, key: str) -> bool:
        """Return whether an effect of `scope="arguments"` was taken from an earlier call."""
        entry = self._execution.replay.peek("effect", key)
        return entry is not None and entry.reused

    @handed_out
    async def memo(
        self,
        key: str,
        fn: Callable[..., Awaitable[T]] | Callable[..., T],
        *args: Any,
        returns: Any = None,
        secret: bool = False,
    ) -> T:
        """Compute a value once per call and keep it in the journal; an error is kept as well.

        Raises:
            MemoFailed: It raised an exception that cannot be made again from its arguments; any
                other exception is raised as it is, the same in every execution.
        """
        check_function("memo", key, fn)
        return await memo(self._execution, key, fn, args, returns=returns, secret=secret)

    def on_commit(self, key: str, fn: Callable[..., Any], *args: Any) -> Awaitable[None]:
        """Run an effect when the call completes, and never before. Awaiting it is optional."""
        execution = self._execution
        check_function("on_commit", key, fn)
        execution.enter("on_commit")
        if check_key(key) in execution.commits:
            raise execution.fault(KeyReused("on_commit", key))
        spec = Once(key=f"commit:{key}", fn=fn, args=args)
        commit = partial(once, execution, spec)
        execution.commits = {**execution.commits, key: commit}
        return NothingToAwait()

    @handed_out
    async def pause(self, *, key: str | None = None, hold: Seconds = 0.0) -> None:
        """End the round with state only: to shed load, or to cut a long job into rounds.

        Clients end a call after about ten rounds. `hold` waits that long first, inside the round
        while that has been held for less than 22 seconds in all, so that a loop which waits for
        something takes few rounds; in a task the next run begins after it.
        """
        execution, delay = self._execution, seconds(hold)
        await execution.enter_async("pause")
        key = execution.key_for("pause", key)
        if execution.recall("patch", f"pause:{key}", b"", "") is None:
            execution.check_new("pause", key, "")
            execution.record(Entry("patch", f"pause:{key}", _YES))
            if delay > 0:
                await execution.delivery.wait(execution, delay)
            else:
                await execution.pause()

    @handed_out
    async def detach(self, message: str = "") -> None:
        """Go on as a task from here: the round ends, and the rest runs in the background.

        For a client without tasks the call goes on as it is, unless the decorator declares
        `detach="refuse"`. In a call that is a task already it does nothing. Questions after it
        may use the keys of questions before it again.
        """
        execution = self._execution
        await execution.enter_async("detach")
        execution.begin_scope()
        if execution.replay.seen("patch", "detach") is not None or execution.delivery.background:
            return
        execution.check_new("detach", "detach", message)
        request = execution.request
        modern_tool = execution.handler.kind == "tool" and request.era == "modern"
        takes_tasks = modern_tool and allows(request.capabilities, "tasks")
        execution.record(Entry("patch", "detach", encode_value(takes_tasks)))
        if takes_tasks and execution.environment.keeps_tasks:
            await execution.detach(message)

    # --- native handlers -------------------------------------------------------------------------

    @property
    def answers(self) -> CallAnswers:
        """The answers of this call by key, for handlers that return `InputRequired`."""
        return CallAnswers(self._execution)

    @property
    def state(self) -> Any:
        """What the last `InputRequired(state=...)` of this call said; decoded at each reading."""
        payload = self._execution.call.journal.state
        return None if payload is None else decode_value(payload)

    def state_as(self, model: type[T]) -> T | None:
        """Return the state as a type: a model, a dataclass, a typed dict; None while there is none.

        Raises:
            HandlerError: The state does not fit the type.
        """
        payload = self._execution.call.journal.state
        return None if payload is None else read_state(payload, model)

    # --- progress and log messages ---------------------------------------------------------------

    @handed_out
    async def report(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report progress to the client, if it wants any; silent while replaying."""
        execution = self._execution
        execution.enter("report")
        check_report(progress, total, message)
        if not execution.replay.unread:
            await execution.delivery.report(execution, progress, total, message)

    @handed_out
    async def log(self, data: Any, *, level: LogLevel = "info", logger: str | None = None) -> None:
        """Send a log message to the client, if it wants that level; silent while replaying."""
        self._execution.enter("log")
        check_log(data, level, logger)
        await self._execution.delivery.log(self._execution, data, level, logger)

    def lifespan(self, type_: type[T]) -> T:
        """Return what `Server(lifespan=...)` yielded; `type_` says what that is, and is checked.

        Raises:
            HandlerError: The server has no lifespan, or it yields something else.
        """
        return self._execution.environment.lifespan.get(type_)

    @handed_out
    async def release_stream(self) -> bool:
        """Let go of the connection of a long call; the client comes back for what follows.

        Only legacy HTTP clients of 2025-11-25 can come back. False where nothing was let go.
        """
        self._execution.enter("release_stream")
        return await self._execution.request.channel.release_stream()

    def __repr__(self) -> str:
        """Show which round of which handler."""
        return f"<Context {self._execution.handler.identity} round {self._execution.call.round}>"

    def _awaited(self, what: str, made: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Hand out something to await, so that one which was forgotten is noticed."""
        if running_loop() is None:
            made.close()
            raise needs_async(self._execution.handler.name, what)
        self._execution.calls[made] = (what, place_of(caller(2)))
        return made


def _behind(execution: Execution) -> bool:
    """Return whether the handler has not come yet to where an earlier round had come."""
    if execution.replay.unread:
        return True
    used, asked = execution.replay.used, execution.asked
    return any(key not in asked and not used("ask", key) for key in execution.call.pending)
