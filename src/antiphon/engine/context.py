"""`Context`: what a handler sees. A thin surface; every duty is elsewhere.

The asking methods are plain functions that return something to await, so that a handler running
in a thread is told at once that it cannot ask.
"""

import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Literal, TypeVar, overload

from antiphon.core.asks import (
    Approval,
    Ask,
    Completion,
    Elicit,
    ElicitUrl,
    ListRoots,
    Opened,
    Outcome,
    Root,
    Sample,
    Seconds,
    seconds,
)
from antiphon.core.capabilities import allows, missing
from antiphon.core.journal import PATCHED, Entry
from antiphon.core.request import Era, Principal
from antiphon.engine import effects
from antiphon.engine.answers import Answers
from antiphon.engine.checks import check_function
from antiphon.engine.execution import Execution
from antiphon.engine.handler import needs_of
from antiphon.engine.keys import check_key
from antiphon.engine.notices import log, report
from antiphon.engine.push import must_restart, url_required, visited
from antiphon.engine.questions import question
from antiphon.engine.unawaited import Unawaited
from antiphon.errors import HandlerError

T = TypeVar("T")

_APPROVE = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Approve"}},
    "required": ["approve"],
}
_UNAVAILABLE = {"action": "unavailable"}


class Context:
    """One call, as its handler sees it in this round."""

    __slots__ = ("_answers", "_run")

    def __init__(self, run: Execution) -> None:
        """Made by the engine."""
        self._run = run
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
        self._run.need_async("elicit")
        if not options:
            return self._run.ask_form(key, message, form)
        return self._one(Elicit(message, form, **options), key)

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
        self._run.need_async("elicit_url")
        return self._url(ElicitUrl(message, url, **options), key, until, seconds(every))

    def sample(
        self, messages: Any, *, key: str | None = None, **options: Any
    ) -> Coroutine[Any, Any, Completion]:
        """Ask the client's model for a completion."""
        self._run.need_async("sample")
        return self._one(Sample(messages, **options), key)

    def roots(self, *, key: str | None = None, **options: Any) -> Coroutine[Any, Any, list[Root]]:
        """Ask for the workspace roots."""
        self._run.need_async("roots")
        return self._one(ListRoots(**options), key)

    def outcome(self, ask: Ask, *, key: str | None = None) -> Coroutine[Any, Any, Outcome[Any]]:
        """Ask anything, and get a refusal as a value instead of an exception."""
        self._run.need_async("outcome")
        return self._outcome(ask, key)

    def gather(self, **asks: Ask) -> Coroutine[Any, Any, dict[str, Any]]:
        """Ask several things in one round; the names are the keys."""
        self._run.need_async("gather")
        return self._gather(asks)

    def approve(
        self,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        key: str | None = None,
        **options: Any,
    ) -> Coroutine[Any, Any, Approval]:
        """Ask for an explicit yes. False unless the person approved this very question (S4-9)."""
        self._run.need_async("approve")
        ask = Elicit(message, _APPROVE, details=details, **options)
        return Unawaited(self._approve(ask, key))

    async def _one(self, ask: Ask, key: str | None) -> Any:
        return (await self._run.ask_one(key, ask)).unwrap()

    async def _outcome(self, ask: Ask, key: str | None) -> Outcome[Any]:
        return await self._run.ask_one(key, ask)

    async def _gather(self, asks: Mapping[str, Ask]) -> dict[str, Any]:
        if not asks:
            raise HandlerError("gather needs at least one ask")
        outcomes = await self._run.ask(tuple(asks.items()))
        return {name: o.unwrap() for name, o in zip(asks, outcomes, strict=True)}

    async def _url(
        self, ask: ElicitUrl, key: str | None, until: Callable[[], Any] | None, every: float
    ) -> Opened:
        run = self._run
        await run.enter_async("elicit_url")
        key = run.key_for("url", key)
        if until is not None and must_restart(run):
            if await effects.call_user(run, key, until, (), {}):
                return Opened(ask.url)  # the visit that an earlier call asked for is done
            raise url_required(run, key, ask)
        (outcome,) = await run.ask_named(((key, ask),))
        outcome.unwrap()
        if until is not None and run.recall_memo(f"{key}:done") is None:
            while not await effects.call_user(run, key, until, (), {}):
                await run.pause(hold=every)
            run.enter("elicit_url")
            run.replay.record(Entry("memo", f"{key}:done", True))
            await visited(run, key)
        return Opened(ask.url)

    async def _approve(self, ask: Elicit, key: str | None) -> Approval:
        run = self._run
        await run.enter_async("approve")
        key = run.key_for("approve", key)
        ready = question(ask)
        if not run.replay.knows("ask", key) and missing(run.round.capabilities, ready.needs):
            run.check_new("ask", key, ready.note)
            run.replay.record(Entry("ask", key, _UNAVAILABLE, ready.digest, ready.note))
            return Approval("unavailable")
        (outcome,) = await run.ask_named(((key, ask),))
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
        scope: effects.Scope = "call",
        window: Seconds | None = None,
        scope_key: str | None = None,
        returns: Any = None,
    ) -> Coroutine[Any, Any, T]:
        """Do something once, however often the code re-runs; give its recorded result (P1).

        Raises:
            EffectFailed: It raised; the same in every run.
            EffectUncertain: It was started before and its end is not known.
        """
        self._run.need_async("once")
        check_function("once", key, fn)
        spec = effects.Once(
            key=key,
            fn=fn,
            args=args,
            retry=retry,
            scope=scope,
            window=window,
            scope_key=scope_key,
            returns=returns,
        )
        return self._once(spec)

    async def _once(self, spec: effects.Once) -> Any:
        value, reused = await effects.once(self._run, spec)
        if reused:
            self._run.reused.add(spec.key)
        return value

    def reused(self, key: str) -> bool:
        """Tell whether an effect of `scope="arguments"` was taken from an earlier call."""
        return key in self._run.reused

    def memo(
        self,
        key: str,
        fn: Callable[..., Awaitable[T]] | Callable[..., T],
        *args: Any,
        returns: Any = None,
        secret: bool = False,
    ) -> Coroutine[Any, Any, T]:
        """Compute a value once per call and keep it in the journal."""
        self._run.need_async("memo")
        check_function("memo", key, fn)
        return effects.memo(self._run, key, fn, args, returns=returns, secret=secret)

    def on_commit(self, key: str, fn: Callable[..., Any], *args: Any) -> Awaitable[None]:
        """Run an effect when the call completes, and never before. Awaiting it is optional."""
        check_function("on_commit", key, fn)
        effects.on_commit(self._run, key, fn, args)
        return _DONE

    def pause(self, *, key: str | None = None, hold: Seconds = 0.0) -> Coroutine[Any, Any, None]:
        """End the round with state only: to shed load, or to cut a long job into legs.

        `hold` keeps the response back that long, so that clients do not spin (S4-13).
        """
        self._run.need_async("pause")
        return self._pause(key, seconds(hold))

    async def _pause(self, key: str | None, hold: float) -> None:
        run = self._run
        await run.enter_async("pause")
        key = run.key_for("pause", key)
        if run.replay.recall("patch", f"pause:{key}", b"", "") is None:
            run.check_new("pause", key, "")
            run.replay.record(Entry("patch", f"pause:{key}", True))
            await run.pause(hold=hold)

    def detach(self, message: str = "") -> Coroutine[Any, Any, None]:
        """Go on as a task from here: the round ends, and the rest runs in the background.

        For a client without tasks the call goes on as it is, unless the decorator declares
        `detach="refuse"`. In a call that is a task already it does nothing.
        """
        self._run.need_async("detach")
        return self._detach(message)

    async def _detach(self, message: str) -> None:
        run = self._run
        await run.enter_async("detach")
        if run.replay.seen("patch", "detach") is not None or run.leg is not None:
            return
        run.replay.check_new("detach", "detach", message)
        takes_tasks = (
            run.handler.kind == "tool"
            and run.round.era == "modern"
            and allows(run.round.capabilities, "tasks")
        )
        run.replay.record(Entry("patch", "detach", takes_tasks))
        if takes_tasks and run.services.keeps_tasks:
            run.detached = message
            await run.suspend()

    def patched(self, id: str) -> bool:
        """Let code change under running calls: False in a call that came past here before."""
        run = self._run
        run.enter("patched")
        key = PATCHED + check_key(id)
        known = run.steady.get(key)
        if known is None:
            # The first word holds for the whole run: a loop must not change sides half way.
            marked = run.replay.seen("patch", key) is not None
            known = run.steady[key] = marked or not run.replay.replaying
            if known and not marked:
                run.replay.record(Entry("patch", key, True))
        return known

    # --- time, dice ------------------------------------------------------------------------------

    def now(self, *, key: str | None = None) -> datetime:
        """The time, in UTC, as it was when this line was first reached."""
        run = self._run
        run.enter("now")
        key = "now:" + run.key_for("now", key)
        value = run.recall_memo(key)
        if value is None:
            value = run.services.clock()
            run.check_new("memo", key, "ctx.now")
            run.replay.record(Entry("memo", key, value))
        return datetime.fromtimestamp(value, UTC)

    def uuid(self, *, key: str | None = None) -> uuid.UUID:
        """A random UUID that is the same in every re-run."""
        return uuid.UUID(bytes=self._dice("uuid", key)[:16], version=4)

    def random(self, *, key: str | None = None) -> float:
        """A random number in [0, 1) that is the same in every re-run."""
        return (int.from_bytes(self._dice("random", key)[:7], "big") >> 3) / 2**53

    def _dice(self, what: str, key: str | None) -> bytes:
        self._run.enter(what)
        name = self._run.key_for(what, key)
        return blake2b(f"{what} {name}".encode(), key=self._run.call.seed, digest_size=32).digest()

    # --- about the call --------------------------------------------------------------------------

    def can(self, ask: type[Ask] | Ask) -> bool:
        """Tell whether this client can be asked; the answer is the same in every round (S4-10)."""
        needs = needs_of(ask)
        value = self._steady(
            "can:" + "+".join(needs), lambda: not missing(self._run.round.capabilities, needs)
        )
        return bool(value)

    @property
    def can_ask(self) -> bool:
        """Whether this client can be asked for anything at all."""
        capabilities = self._run.round.capabilities
        kinds: tuple[Any, ...] = ("form", "url", "sampling", "roots")
        return bool(self._steady("can_ask", lambda: any(allows(capabilities, n) for n in kinds)))

    @property
    def era(self) -> Era:
        """`modern` or `legacy`."""
        return self._steady("era", lambda: self._run.round.era)

    @property
    def protocol_version(self) -> str:
        """The revision that the client speaks."""
        return self._steady("version", lambda: self._run.round.version)

    def _steady(self, what: str, read: Callable[[], Any]) -> Any:
        """Keep what may differ between rounds as it was first read."""
        run = self._run
        run.enter(what)
        known = run.steady.get(what)
        if known is None:
            known = run.recall_memo(f"ctx.{what}")
            if known is None:
                known = read()
                run.replay.record(Entry("memo", f"ctx.{what}", known))
            run.steady[what] = known
        return known

    @property
    def call_id(self) -> str:
        """The call's own id: the same in every round."""
        return self._run.call.id

    @property
    def round(self) -> int:
        """The number of this round; the first is 1."""
        return self._run.call.number

    @property
    def principal(self) -> Principal:
        """Who is calling, as the transport authenticated it."""
        return self._run.round.principal

    @property
    def answers(self) -> Answers:
        """The answers of this call by key, for handlers that return `InputRequired`."""
        if self._answers is None:
            self._answers = Answers(self._run)
        return self._answers

    @property
    def state(self) -> Any:
        """What the last `InputRequired(state=...)` of this call was given."""
        return self._run.call.journal.state

    # --- telling ---------------------------------------------------------------------------------

    async def report(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report progress to the client, if it wants any; silent while replaying (S5-9)."""
        self._run.enter("report")
        await report(self._run, progress, total, message)

    async def log(
        self,
        data: Any,
        *,
        level: Literal[
            "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"
        ] = "info",
        logger: str | None = None,
    ) -> None:
        """Send a log message to the client, if it wants that level; silent while replaying."""
        self._run.enter("log")
        await log(self._run, data, level, logger)

    async def release_stream(self) -> bool:
        """Let go of the connection of a long call; the client comes back for what follows.

        Only legacy HTTP clients of 2025-11-25 can come back. False where nothing was let go.
        """
        self._run.enter("release_stream")
        return await self._run.round.channel.release_stream()

    def __repr__(self) -> str:
        """Show which round of which handler."""
        return f"<Context {self._run.handler.identity} round {self._run.call.number}>"


def run_of(ctx: Context) -> Execution:
    """Give the run behind a context, for the shapes that are built on it."""
    return ctx._run  # pyright: ignore[reportPrivateUsage]


class _Done:
    """What an optional `await` waits for: nothing."""

    def __await__(self) -> Any:
        """Give nothing at once."""
        return None
        yield


_DONE = _Done()
_APPROVAL: Mapping[str, Any] = {
    "declined": "declined",
    "cancelled": "cancelled",
    "expired": "cancelled",
    "unavailable": "unavailable",
}
