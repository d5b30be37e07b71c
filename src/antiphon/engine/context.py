"""`Context`: what a handler sees, with `ctx.answers`, progress and log messages.

Methods that wait are plain functions that return something to await: a handler running in a thread
is refused at once, and the execution knows what it has handed out and was never awaited.
"""

import inspect
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from math import isfinite
from typing import Any, Literal, TypeVar, overload

from antiphon.core.asks import (
    Approval,
    Ask,
    Completion,
    Elicit,
    ElicitUrl,
    Kind,
    ListRoots,
    Opened,
    Outcome,
    Root,
    Sample,
    Seconds,
    seconds,
)
from antiphon.core.capabilities import allows, missing
from antiphon.core.journal import PATCHED, decode_value, encode_value
from antiphon.core.request import LEVELS, Era, Principal
from antiphon.core.text import safe
from antiphon.engine import asking, effects
from antiphon.engine.call import Rejected
from antiphon.engine.execution import Execution
from antiphon.engine.handler import needs_of
from antiphon.engine.questions import check_key, check_shape, question, read_answer, reasons
from antiphon.engine.suspension import call_user, running_loop
from antiphon.errors import AnswerInvalid, HandlerError, KeyReused
from antiphon.forms.form import Form, of

T = TypeVar("T")

_APPROVE = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Approve"}},
    "required": ["approve"],
}
_UNAVAILABLE = encode_value({"action": "unavailable"})
_YES = encode_value(True)
_TEXT = 2_000


class Context:
    """One call, as its handler sees it in this round."""

    __slots__ = ("_answers", "_execution")

    def __init__(self, execution: Execution) -> None:
        """Made by the engine."""
        self._execution = execution
        self._answers: Answers | None = None

    # --- asking ----------------------------------------------------------------------------------

    @overload
    def elicit(
        self, message: str, form: type[T], *, key: str | None = None, **options: Any
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def elicit(
        self, message: str, form: Mapping[str, Any], *, key: str | None = None, **options: Any
    ) -> Coroutine[Any, Any, dict[str, Any]]: ...
    def elicit(
        self, message: str, form: Any, *, key: str | None = None, **options: Any
    ) -> Coroutine[Any, Any, Any]:
        """Ask a person to fill a form; ends the round, and resumes here in the next.

        Raises:
            Declined: An explicit no.
            Cancelled: Dismissed without a choice.
            Expired: No answer within `timeout=`.
        """
        if options:
            return self._awaited("elicit", self._one(Elicit(message, form, **options), key))
        if running_loop() is None:
            raise self._execution.not_async("elicit")
        execution = self._execution
        made = asking.ask_form(execution, key, message, form)
        execution.calls.append(("elicit", made))
        return made

    def elicit_url(
        self,
        message: str,
        url: str,
        *,
        key: str | None = None,
        until: Callable[[], Any] | None = None,
        every: Seconds = 2.0,
        **options: Any,
    ) -> Coroutine[Any, Any, Opened]:
        """Ask a person to visit a URL; with `until=`, wait until the visit has done its work.

        `until` is called in rounds of their own, at least `every` seconds apart, and says whether
        the outcome has arrived on the server's side.
        """
        ask = ElicitUrl(message, url, **options)
        return self._awaited("elicit_url", self._url(ask, key, until, seconds(every)))

    def sample(
        self, messages: Any, *, key: str | None = None, **options: Any
    ) -> Coroutine[Any, Any, Completion]:
        """Ask the client's model for a completion."""
        return self._awaited("sample", self._one(Sample(messages, **options), key))

    def roots(self, *, key: str | None = None, **options: Any) -> Coroutine[Any, Any, list[Root]]:
        """Ask for the workspace roots."""
        return self._awaited("roots", self._one(ListRoots(**options), key))

    def outcome(self, ask: Ask, *, key: str | None = None) -> Coroutine[Any, Any, Outcome[Any]]:
        """Ask anything, and get a refusal as a value instead of an exception."""
        return self._awaited("outcome", asking.ask_one(self._execution, key, ask))

    def gather(self, **asks: Ask) -> Coroutine[Any, Any, dict[str, Any]]:
        """Ask several things in one round; the names are the keys."""
        return self._awaited("gather", self._gather(asks))

    def approve(
        self,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        key: str | None = None,
        **options: Any,
    ) -> Coroutine[Any, Any, Approval]:
        """Ask for an explicit yes. False unless the person approved this very question."""
        ask = Elicit(message, _APPROVE, details=details, **options)
        return self._awaited("approve", ApprovalAwaitable(self._approve(ask, key)))

    def _awaited(self, what: str, made: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """Hand out something to await, so that one which was forgotten is noticed."""
        execution = self._execution
        if running_loop() is None:
            made.close()
            raise execution.not_async(what)
        execution.calls.append((what, made))
        return made

    async def _one(self, ask: Ask, key: str | None) -> Any:
        return (await asking.ask_one(self._execution, key, ask)).unwrap()

    async def _gather(self, asks: Mapping[str, Ask]) -> dict[str, Any]:
        if not asks:
            raise HandlerError("gather needs at least one ask")
        outcomes = await asking.ask(self._execution, tuple(asks.items()))
        return {name: o.unwrap() for name, o in zip(asks, outcomes, strict=True)}

    async def _url(
        self, ask: ElicitUrl, key: str | None, until: Callable[[], Any] | None, every: float
    ) -> Opened:
        execution = self._execution
        await execution.enter_async("elicit_url")
        key = execution.key_for("url", key)
        if until is not None:
            error = execution.delivery.url_error(execution, key, ask)
            if error is not None:
                if await self._look(key, until):
                    return Opened(ask.url)  # the visit that an earlier call asked for is done
                raise error
        (outcome,) = await asking.ask_named(execution, ((key, ask),))
        outcome.unwrap()
        if until is not None and execution.recall_memo(f"{key}:done") is None:
            while not await self._look(key, until):
                await execution.pause(every)
            execution.enter("elicit_url")
            execution.record("memo", f"{key}:done", _YES)
            await execution.delivery.visited(execution, key)
        return Opened(ask.url)

    async def _look(self, key: str, until: Callable[[], Any]) -> bool:
        with self._execution.inside(key):
            return bool(await call_user(until))

    async def _approve(self, ask: Elicit, key: str | None) -> Approval:
        execution = self._execution
        await execution.enter_async("approve")
        key = execution.key_for("approve", key)
        ready = question(ask)
        known = execution.replay.knows("ask", key)
        if not known and missing(execution.request.capabilities, ready.needs):
            execution.check_new("ask", key, ready.note)
            execution.record("ask", key, _UNAVAILABLE, ready.digest, ready.note)
            return Approval("unavailable")
        (outcome,) = await asking.ask_named(execution, ((key, ask),))
        if outcome.status == "accepted":
            content: Any = outcome.value
            return Approval("approved" if content.get("approve") is True else "declined")
        return Approval(_APPROVAL[outcome.status])

    # --- remembering and acting ------------------------------------------------------------------

    def once(
        self,
        key: str,
        fn: Callable[..., Awaitable[T]] | Callable[..., T],
        *args: Any,
        retry: bool = False,
        verify: Callable[..., Any] | None = None,
        scope: effects.Scope = "call",
        window: Seconds | None = None,
        scope_key: str | None = None,
        returns: Any = None,
    ) -> Coroutine[Any, Any, T]:
        """Do something once, however often the code re-runs; returns its recorded result.

        Args:
            key: Names the effect in this call.
            fn: The function that acts; called with `args`, and with `idempotency_key=` if it takes
                one.
            args: Its arguments.
            retry: It may be called again with the same idempotency key.
            verify: Called like `fn` when the effect was started and its end is not known: returns
                the result if it happened, raises `NotDone` if it did not.
            scope: `arguments` shares the result between calls of one caller.
            window: How long a shared result counts.
            scope_key: Tells apart callers that are not authenticated.
            returns: The type of the result, where the annotation does not say it.

        Raises:
            EffectFailed: It raised; the same in every execution.
            NotDone: It raised `NotDone`: nothing happened, and it may be tried again.
            EffectUncertain: It was started before and its end is not known.
        """
        _check_function("once", key, fn)
        spec = effects.Once(
            key=key,
            fn=fn,
            args=args,
            retry=retry,
            verify=verify,
            scope=scope,
            window=window,
            scope_key=scope_key,
            returns=returns,
        )
        return self._awaited("once", effects.once(self._execution, spec))

    def reused(self, key: str) -> bool:
        """Return whether an effect of `scope="arguments"` was taken from an earlier call."""
        entry = self._execution.replay.peek("effect", key)
        return entry is not None and entry.reused

    def memo(
        self,
        key: str,
        fn: Callable[..., Awaitable[T]] | Callable[..., T],
        *args: Any,
        returns: Any = None,
        secret: bool = False,
    ) -> Coroutine[Any, Any, T]:
        """Compute a value once per call and keep it in the journal; an error is kept as well.

        Raises:
            MemoFailed: It raised an exception that cannot be made again from its arguments; any
                other exception is raised as it is, the same in every execution.
        """
        _check_function("memo", key, fn)
        made = effects.memo(self._execution, key, fn, args, returns=returns, secret=secret)
        return self._awaited("memo", made)

    def on_commit(self, key: str, fn: Callable[..., Any], *args: Any) -> Awaitable[None]:
        """Run an effect when the call completes, and never before. Awaiting it is optional."""
        execution = self._execution
        _check_function("on_commit", key, fn)
        execution.enter("on_commit")
        if check_key(key) in execution.commits:
            raise execution.fault(KeyReused("on_commit", key))
        spec = effects.Once(key=f"commit:{key}", fn=fn, args=args)
        execution.commits[key] = partial(effects.once, execution, spec)
        return _DONE

    def pause(self, *, key: str | None = None, hold: Seconds = 0.0) -> Coroutine[Any, Any, None]:
        """End the round with state only: to shed load, or to cut a long job into rounds.

        `hold` keeps the response back that long, so that clients do not spin.
        """
        return self._awaited("pause", self._pause(key, seconds(hold)))

    async def _pause(self, key: str | None, hold: float) -> None:
        execution = self._execution
        await execution.enter_async("pause")
        key = execution.key_for("pause", key)
        if execution.recall("patch", f"pause:{key}", b"", "") is None:
            execution.check_new("pause", key, "")
            execution.record("patch", f"pause:{key}", _YES)
            await execution.pause(hold)

    def detach(self, message: str = "") -> Coroutine[Any, Any, None]:
        """Go on as a task from here: the round ends, and the rest runs in the background.

        For a client without tasks the call goes on as it is, unless the decorator declares
        `detach="refuse"`. In a call that is a task already it does nothing.
        """
        return self._awaited("detach", self._detach(message))

    async def _detach(self, message: str) -> None:
        execution = self._execution
        await execution.enter_async("detach")
        if execution.replay.seen("patch", "detach") is not None or execution.delivery.background:
            return
        execution.check_new("detach", "detach", message)
        request = execution.request
        takes_tasks = (
            execution.handler.kind == "tool"
            and request.era == "modern"
            and allows(request.capabilities, "tasks")
        )
        execution.record("patch", "detach", encode_value(takes_tasks))
        if takes_tasks and execution.environment.keeps_tasks:
            await execution.detach(message)

    def patched(self, id: str) -> bool:
        """Let code change under running calls: False in a call that came past here before."""
        execution = self._execution
        execution.enter("patched")
        key = PATCHED + check_key(id)
        known = execution.first_reads.get(key)
        if known is None:
            # The first answer holds for the whole execution: a loop must not change sides.
            marked = execution.replay.seen("patch", key) is not None
            known = execution.first_reads[key] = marked or not execution.behind
            if known and not marked:
                execution.record("patch", key, _YES)
        return known

    # --- time and randomness ---------------------------------------------------------------------

    def now(self, *, key: str | None = None) -> datetime:
        """The time, in UTC, as it was when this line was first reached."""
        execution = self._execution
        execution.enter("now")
        key = "now:" + execution.key_for("now", key)
        value = execution.recall_memo(key)
        if value is None:
            value = execution.environment.clock()
            execution.check_new("memo", key, "ctx.now")
            execution.record("memo", key, encode_value(value))
        return datetime.fromtimestamp(value, UTC)

    def uuid(self, *, key: str | None = None) -> uuid.UUID:
        """A random UUID that is the same in every re-run."""
        return uuid.UUID(bytes=self._random("uuid", key)[:16], version=4)

    def random(self, *, key: str | None = None) -> float:
        """A random number in [0, 1) that is the same in every re-run."""
        return (int.from_bytes(self._random("random", key)[:7], "big") >> 3) / 2**53

    def _random(self, what: str, key: str | None) -> bytes:
        execution = self._execution
        execution.enter(what)
        name = execution.key_for(what, key)
        if f"{what} {name}" in execution.first_reads:
            raise execution.fault(KeyReused(f"ctx.{what}", name))
        execution.first_reads[f"{what} {name}"] = True
        seed = execution.call.seed
        return blake2b(f"{what} {name}".encode(), key=seed, digest_size=32).digest()

    # --- about the call --------------------------------------------------------------------------

    def can(self, ask: type[Ask] | Ask) -> bool:
        """Return whether this client can be asked; the same in every round."""
        needs = needs_of(ask)
        value = self._first_read(
            "can:" + "+".join(needs),
            lambda: not missing(self._execution.request.capabilities, needs),
        )
        return bool(value)

    @property
    def can_ask(self) -> bool:
        """Whether this client can be asked for anything at all."""
        has = self._execution.request.capabilities
        kinds: tuple[Any, ...] = ("form", "url", "sampling", "roots")
        return bool(self._first_read("can_ask", lambda: any(allows(has, n) for n in kinds)))

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
        known = execution.first_reads.get(what)
        if known is None:
            known = execution.recall_memo(f"ctx.{what}")
            if known is None:
                known = read()
                execution.record("memo", f"ctx.{what}", encode_value(known))
            execution.first_reads[what] = known
        return known

    @property
    def call_id(self) -> str:
        """The call's own id: the same in every round."""
        return self._execution.call.id

    @property
    def round(self) -> int:
        """The number of this round; the first is 1."""
        return self._execution.call.round

    @property
    def principal(self) -> Principal:
        """Who is calling, as the transport authenticated it."""
        return self._execution.request.principal

    @property
    def answers(self) -> "Answers":
        """The answers of this call by key, for handlers that return `InputRequired`."""
        if self._answers is None:
            self._answers = Answers(self._execution)
        return self._answers

    @property
    def state(self) -> Any:
        """What the last `InputRequired(state=...)` of this call said; decoded at each reading."""
        payload = self._execution.call.journal.state
        return None if payload is None else decode_value(payload)

    # --- progress and log messages ---------------------------------------------------------------

    def report(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> Coroutine[Any, Any, None]:
        """Report progress to the client, if it wants any; silent while replaying."""
        return self._awaited("report", self._report(progress, total, message))

    async def _report(self, progress: float, total: float | None, message: str | None) -> None:
        execution = self._execution
        execution.enter("report")
        request = execution.request
        if execution.replay.unread:
            return
        if execution.delivery.background:
            share = f"{progress:g} of {total:g}" if total else f"{progress:g}"
            await execution.delivery.say(execution, share if message is None else message)
            return
        if request.progress_token is None:
            return
        if not (progress > execution.progress and isfinite(progress)):
            return  # progress must strictly increase
        execution.progress = progress
        params: dict[str, Any] = {"progressToken": request.progress_token, "progress": progress}
        if total is not None and isfinite(total):
            params["total"] = total
        if message is not None:
            params["message"] = safe(message, _TEXT)
        await request.channel.notify("notifications/progress", params)

    def log(
        self,
        data: Any,
        *,
        level: Literal[
            "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"
        ] = "info",
        logger: str | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Send a log message to the client, if it wants that level; silent while replaying."""
        return self._awaited("log", self._log(data, level, logger))

    async def _log(self, data: Any, level: str, logger: str | None) -> None:
        execution = self._execution
        execution.enter("log")
        if level not in LEVELS:
            raise HandlerError(f"log level {level!r} is none of {', '.join(LEVELS)}")
        request = execution.request
        if request.log_level is None or execution.replay.unread:
            return
        if LEVELS.index(level) < LEVELS.index(request.log_level):
            return
        params: dict[str, Any] = {
            "level": level,
            "data": safe(data, _TEXT) if isinstance(data, str) else data,
        }
        if logger is not None:
            params["logger"] = logger
        await request.channel.notify("notifications/message", params)

    def lifespan(self, type_: type[T]) -> T:
        """Return what `Server(lifespan=...)` yielded; `type_` says what that is, and is checked.

        Raises:
            HandlerError: The server has no lifespan, or it yields something else.
        """
        return self._execution.environment.lifespan.get(type_)

    async def release_stream(self) -> bool:
        """Let go of the connection of a long call; the client comes back for what follows.

        Only legacy HTTP clients of 2025-11-25 can come back. False where nothing was let go.
        """
        self._execution.enter("release_stream")
        return await self._execution.request.channel.release_stream()

    def __repr__(self) -> str:
        """Show which round of which handler."""
        return f"<Context {self._execution.handler.identity} round {self._execution.call.round}>"


def execution_of(ctx: Context) -> Execution:
    """Return the execution behind a context, for the shapes that are built on it."""
    return ctx._execution  # pyright: ignore[reportPrivateUsage]


def _check_function(what: str, key: object, fn: object) -> None:
    """Refuse what cannot be called, before it is claimed and fails for good."""
    if callable(fn) and isinstance(key, str):
        return
    if inspect.iscoroutine(fn):
        fn.close()  # it was never going to be awaited
    raise HandlerError(
        f"ctx.{what} takes a key, a function and its arguments, and calls the function itself: "
        f'ctx.{what}("create", create, name), not ctx.{what}(create(name)).'
    )


class _Done:
    """What an optional `await` waits for: nothing."""

    def __await__(self) -> Any:
        """Return at once."""
        return None
        yield


_DONE = _Done()
_APPROVAL: Mapping[str, Any] = {
    "declined": "declined",
    "cancelled": "cancelled",
    "expired": "cancelled",
    "unavailable": "unavailable",
}


# --- answers -------------------------------------------------------------------------------------


class Answers:
    """The accepted answers of this call, by key: only what was asked for."""

    __slots__ = ("_execution", "_payloads")

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._payloads: Mapping[str, bytes] = {
            **execution.call.unasked,
            **{e.key: e.payload for e in execution.call.entries if e.kind == "ask"},
        }

    @overload
    def get(self, key: str) -> Any: ...
    @overload
    def get(self, key: str, model: type[T]) -> T | None: ...
    def get(self, key: str, model: Any = None) -> Any:
        """Return the accepted, validated value under a key; None when there is none yet."""
        return self.outcome(key, model).value

    @overload
    def outcome(self, key: str) -> Outcome[Any]: ...
    @overload
    def outcome(self, key: str, model: type[T]) -> Outcome[T]: ...
    def outcome(self, key: str, model: Any = None) -> Outcome[Any]:
        """Return how an ask ended: accepted, declined, cancelled, expired or missing."""
        payload = self._payloads.get(key)
        if payload is None:
            return Outcome("missing", None, key)
        raw = decode_value(payload)
        form: Form[Any] | None = of(model) if model is not None else None
        kind: Kind = "form" if form is not None else _kind(raw)
        call = self._execution.call
        if key in call.unasked:
            raw = check_shape(kind, key, raw)
        try:
            return read_answer(kind, raw, key, form)
        except AnswerInvalid as error:
            pending = call.pending.get(key)
            tries = pending.tries + 1 if pending is not None else 1
            asking.reject(self._execution, key, Rejected(tries, reasons(error)))
            return Outcome("missing", None, key)

    def __contains__(self, key: object) -> bool:
        """Return whether anything came back under a key, a refusal included."""
        return key in self._payloads

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys under which something came back."""
        return iter(self._payloads)

    def __repr__(self) -> str:
        """Show keys, never values."""
        return f"<Answers {sorted(self._payloads)}>"


def _kind(raw: Mapping[str, Any]) -> Kind:
    """Return the kind of an answer by its own members; there is no tag on the wire."""
    if "roots" in raw:
        return "roots"
    if "action" in raw:
        return "form" if "content" in raw or raw["action"] != "accept" else "url"
    return "sample" if "model" in raw else "form"


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
