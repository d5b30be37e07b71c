"""`Context`: what a handler sees. Here is how it asks; everything else is in `context_base.py`."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Never, TypeVar, Unpack, overload

from antiphon.core.asks import (
    Approval,
    Approve,
    ApproveOptions,
    Ask,
    AskOptions,
    Completion,
    Elicit,
    ElicitOptions,
    ElicitUrl,
    ListRoots,
    Opened,
    Outcome,
    Root,
    Sample,
    SampleOptions,
    Seconds,
    seconds,
)
from antiphon.core.capabilities import allows
from antiphon.core.journal import Entry, decode_value, encode_value
from antiphon.engine.approvals import named_by_caller, route_asks
from antiphon.engine.child_tasks import get_inside
from antiphon.engine.context_base import ContextBase, handed_out
from antiphon.engine.execution import RUNNING, Batch, Execution
from antiphon.engine.handler import call_user
from antiphon.engine.mistakes import (
    ApprovalAwaitable,
    caller,
    check_asks,
    check_options,
    check_secret,
    needs_async,
    too_many_asks,
    unable_to_ask,
)
from antiphon.engine.questions import Question, check_key, plain_form, question, reasons
from antiphon.engine.suspension import running_loop
from antiphon.errors import AnswerInvalid, TooManyRounds

T = TypeVar("T")

_YES = encode_value(True)
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Context(ContextBase):
    """One call, as its handler sees it in this round."""

    __slots__ = ()

    def __init__(self, execution: Execution) -> None:
        """Made by the engine."""
        self._execution = execution
        self._first_reads = _NOTHING

    @overload
    def elicit(
        self,
        message: str,
        form: type[T],
        *,
        key: str | None = None,
        **options: Unpack[ElicitOptions],
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def elicit(
        self,
        message: str,
        form: Mapping[str, Any],
        *,
        key: str | None = None,
        **options: Unpack[ElicitOptions],
    ) -> Coroutine[Any, Any, dict[str, Any]]: ...
    def elicit(
        self, message: str, form: Any, *, key: str | None = None, **options: Unpack[ElicitOptions]
    ) -> Coroutine[Any, Any, Any]:
        """Ask a person to fill a form; ends the round, and resumes here in the next.

        Raises:
            Declined: An explicit no.
            Cancelled: Dismissed without a choice.
            Expired: No answer within `timeout=`.
        """
        if options:
            check_options("elicit", options, ElicitOptions)
            return self._awaited("elicit", self._value(Elicit(message, form, **options), key))
        if running_loop() is None:
            raise needs_async(self._execution.handler.name, "elicit")
        made = self._form(message, form, key)
        place = caller(1)
        self._execution.calls[made] = ("elicit", place.f_code, place.f_lasti)
        return made

    @handed_out
    async def elicit_url(
        self,
        message: str,
        url: str,
        *,
        key: str | None = None,
        until: Callable[[], Any] | None = None,
        every: Seconds = 2.0,
        **options: Unpack[AskOptions],
    ) -> Opened:
        """Ask a person to visit a URL; with `until=`, wait until the visit has done its work.

        `until` is called in rounds of their own, at least `every` seconds apart, and says whether
        the outcome has arrived on the server's side.
        """
        check_options("elicit_url", options, AskOptions)
        execution, ask = self._execution, ElicitUrl(message, url, **options)
        await execution.enter_async("elicit_url")
        key = execution.key_for("url", key)
        if until is not None:
            error = execution.delivery.url_error(execution, key, ask)
            if error is not None:
                if await self._look(key, until):
                    return Opened(url)  # the visit that an earlier call asked for is done
                raise error
        (await ask_all(execution, [(key, question(ask))]))[0].unwrap()
        if until is not None and execution.replay.seen("memo", f"{key}:done") is None:
            while not await self._look(key, until):
                await execution.pause(seconds(every))
            execution.enter("elicit_url")
            execution.record("memo", f"{key}:done", _YES)
            await execution.delivery.visited(execution, key)
        return Opened(url)

    async def _look(self, key: str, until: Callable[[], Any]) -> bool:
        with self._execution.inside(key):
            return bool(await call_user(until))

    @handed_out
    async def sample(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        key: str | None = None,
        **options: Unpack[SampleOptions],
    ) -> Completion:
        """Ask the client's model for a completion."""
        check_options("sample", options, SampleOptions)
        return (await self._one(Sample(messages, **options), key)).unwrap()

    @handed_out
    async def roots(self, *, key: str | None = None, **options: Unpack[AskOptions]) -> list[Root]:
        """Ask for the workspace roots."""
        check_options("roots", options, AskOptions)
        return (await self._one(ListRoots(**options), key)).unwrap()

    @handed_out
    async def outcome(self, ask: Ask, *, key: str | None = None) -> Outcome[Any]:
        """Ask anything, and get a refusal as a value instead of an exception."""
        return await self._one(ask, key)

    @handed_out
    async def gather(self, *wrong: Never, **asks: Ask) -> dict[str, Any]:
        """Ask several things in one round; the names are the keys.

        Raises:
            HandlerError: An ask has no name, or is no ask but the result of asking.
        """
        check_asks(wrong, asks)
        await self._execution.enter_async("ask")
        batch = [(check_key(key), question(ask)) for key, ask in asks.items()]
        return {
            o.key: o.value if isinstance(o.value, Approval) else o.unwrap()
            for o in await ask_all(self._execution, batch)
        }

    def approve(
        self, message: str, *, key: str | None = None, **options: Unpack[ApproveOptions]
    ) -> Coroutine[Any, Any, Approval]:
        """Ask for an explicit yes. False unless this very question was approved.

        Args:
            message: The question.
            key: Names the question in this call.
            options: As for every ask, and: `details`, labelled lines under the question, bound to
                the decision; `why`, the model's own words, shown apart; `labels` of the two
                buttons. For the console's inbox: `by`, a role whose holders decide instead of the
                caller; `need`, how many of them must say yes; `own`, whether the caller may decide
                too; `within`, how long they have before the outcome is `expired`; `assurance`:
                `client` (its word), `signed-in`, or `fresh` (within five minutes);
                `fallback="inbox"` puts the question there when the client cannot be asked; `grace`,
                how long a client without tasks waits before it is told to come back.
        """
        check_options("approve", options, ApproveOptions)
        made = self._value(Approve(message, **options), key)
        return self._awaited("approve", ApprovalAwaitable(made))

    async def _form(self, message: str, form: Any, given: str | None) -> Any:
        """Return the accepted value of a plain form: what nearly every handler asks.

        Does what `_one` does, in fewer steps.
        """
        execution = self._execution
        if execution.state is not RUNNING or get_inside():
            await execution.enter_async("ask")
        ready = plain_form(message, form)
        key, entry = execution.recall_ask(ready, given)
        if entry is not None:
            value = ready.form.recall(entry.payload)  # pyright: ignore[reportOptionalMemberAccess]
            if value is not None:
                return value
            outcome = _read(execution, key, ready, entry)
            if outcome is not None:
                return outcome.unwrap()
        return (await _put(execution, [(key, ready)]))[key].unwrap()

    async def _one(self, ask: Ask, given: str | None) -> Outcome[Any]:
        execution = self._execution
        await execution.enter_async("ask")
        ready = question(ask)
        return (await ask_all(execution, [(execution.key_for(ready.base, given), ready)]))[0]

    async def _value(self, ask: Ask, given: str | None) -> Any:
        outcome = await self._one(ask, given)
        return outcome.value if isinstance(ask, Approve) else outcome.unwrap()

    def __repr__(self) -> str:
        """Show which round of which handler."""
        return f"<Context {self._execution.handler.identity} round {self._execution.call.round}>"


def execution_of(ctx: Context) -> Execution:
    """Return the execution behind a context, for the shapes that are built on it."""
    return ctx._execution  # pyright: ignore[reportPrivateUsage]


# --- from an ask to its answer ------------------------------------------------------------------


async def ask_all(execution: Execution, batch: Batch) -> list[Outcome[Any]]:
    """Return the outcomes of asks, in their order: recalled, or put to whoever can answer.

    Most rounds end in here: in `_put` for what the client is asked, in `hold` for the inbox.
    """
    outcomes: dict[str, Outcome[Any]] = {}
    unanswered: list[tuple[str, Question]] = []
    for key, ready in batch:
        entry = execution.recall("ask", key, ready.digest, ready.note)
        outcome = None if entry is None else _read(execution, key, ready, entry)
        if outcome is None:
            unanswered.append((key, ready))
        else:
            outcomes[key] = outcome
    if unanswered:
        asked, held = await route_asks(execution, unanswered, outcomes)
        if asked:
            outcomes |= await _put(execution, asked)
        if held:
            await execution.hold(held)
    who = execution.request.principal
    return [named_by_caller(outcomes[key], who) for key, _ in batch]


def _read(execution: Execution, key: str, ready: Question, entry: Entry) -> Outcome[Any] | None:
    """Read a recorded answer; None when it does not fit and is to be asked for again."""
    try:
        return ready.read(decode_value(entry.payload), key)
    except AnswerInvalid as error:
        execution.reject(key, reasons(error), execution.call.pending.get(key))
        return None


async def _put(execution: Execution, batch: Batch) -> dict[str, Outcome[Any]]:
    """Put asks to the client until each has an answer that fits.

    Where an ask ends the round, `delivery.ask` does not return. It returns answers in legacy
    sessions and parked handlers; only there asks are put a second time by the loop.
    """
    outcomes: dict[str, Outcome[Any]] = {}
    limits, capabilities = execution.environment.limits, execution.request.capabilities
    while batch:
        for key, ready in batch:
            for need in ready.needs:
                if not allows(capabilities, need) and not execution.delivery.reaches_owner(ready):
                    raise unable_to_ask(execution, [ready for _, ready in batch])
            if ready.ask.secret:
                check_secret(execution, "ask", key, secret=True)
            if execution.replay.unread:
                execution.check_new("ask", key, ready.note)
        if len(execution.asked) + len(batch) > limits.asks_per_round:
            raise too_many_asks(limits.asks_per_round)
        if execution.call.journal.asked >= limits.rounds:
            raise TooManyRounds(limits.rounds)
        batch = _take(execution, batch, await execution.delivery.ask(execution, batch), outcomes)
    return outcomes


def _take(
    execution: Execution, batch: Batch, raws: Sequence[Any], outcomes: dict[str, Outcome[Any]]
) -> Batch:
    """Record answers that came while the handler waited; return what must be asked again."""
    again: list[tuple[str, Question]] = []
    for (key, ready), raw in zip(batch, raws, strict=True):
        payload = encode_value(raw)
        try:
            outcomes[key] = ready.read(raw, key)
        except AnswerInvalid as error:
            # In this request (old sessions), or in the one before it (parked handlers).
            before = execution.call.rejected.get(key) or execution.call.pending.get(key)
            execution.reject(key, reasons(error), before)
            again.append((key, ready))
            continue
        secret = ready.ask.secret
        execution.record("ask", key, payload, ready.digest, ready.note, secret=secret)
    return again
