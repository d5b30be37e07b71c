"""`Context`: what a handler sees. Here is how it asks; everything else is in `context_base.py`."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Never, TypeVar, Unpack, cast, overload

from antiphon.engine.approvals import ask_all, ask_named, ask_visit, named, read_answered
from antiphon.engine.child_tasks import get_inside, running_loop, task_of
from antiphon.engine.context_base import ContextBase, handed_out
from antiphon.engine.execution import Execution
from antiphon.engine.mistakes import (
    ApprovalAwaitable,
    caller,
    check_options,
    form_missing,
    needs_async,
    place_of,
)
from antiphon.engine.outcome import RUNNING
from antiphon.engine.questions import (
    MessageTooLong,
    check_key,
    kept_question,
    plain_form,
    question,
)
from antiphon.errors import HandlerError
from antiphon.protocol.asks import (
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
    RawAsk,
    Root,
    Sample,
    SampleOptions,
    Seconds,
)
from antiphon.protocol.content import Message

T = TypeVar("T")

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
        self,
        message: str,
        form: Any = _NOTHING,
        *,
        key: str | None = None,
        **options: Unpack[ElicitOptions],
    ) -> Coroutine[Any, Any, Any]:
        """Ask a person to fill a form; ends the round, and resumes here in the next.

        Raises:
            Declined: An explicit no.
            Cancelled: Dismissed without a choice.
            Expired: No answer within `timeout=`.
        """
        execution = self._execution
        if form is _NOTHING:
            raise form_missing(options)
        if options:
            check_options("elicit", options, ElicitOptions)
            return self._awaited("elicit", self._value(Elicit(message, form, **options), key))
        if running_loop() is None:
            raise needs_async(execution.handler.name, "elicit")
        made = _ask_form(execution, message, form, key)
        execution.calls[made] = ("elicit", place_of(caller(1)))
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

        `until` says whether the outcome has arrived on the server's side. It is called every few
        seconds while the round is held back, for about 22 seconds; then the client comes back.
        """
        check_options("elicit_url", options, AskOptions)
        ask = ElicitUrl(message, url, **options)
        await ask_visit(self._execution, ask, key, until, every)
        return Opened(url)

    @handed_out
    async def sample(
        self,
        messages: str | Sequence[Message | Mapping[str, Any]],
        *,
        key: str | None = None,
        **options: Unpack[SampleOptions],
    ) -> Completion:
        """Ask the client's model for a completion.

        The content of a message may be a text, a content block or a list of them.

        Raises:
            HandlerError: The request is not one of the protocol; names the field.
        """
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
        return {
            o.key: o.value if isinstance(o.value, Approval) else o.unwrap()
            for o in await ask_named(self._execution, wrong, asks)
        }

    @handed_out
    async def outcomes(self, *wrong: Never, **asks: Ask) -> dict[str, Outcome[Any]]:
        """Ask several things in one round, and get each refusal as a value; the names are the keys.

        Raises:
            HandlerError: An ask has no name, or is no ask but the result of asking.
        """
        return {outcome.key: outcome for outcome in await ask_named(self._execution, wrong, asks)}

    @handed_out
    async def ask_raw(
        self, method: str, params: Mapping[str, Any] | None = None, *, key: str
    ) -> dict[str, Any]:
        """Put a request of the protocol to the client as it is; returns its answer as it is.

        For code that passes on what another server asks. `RawAsk` does the same in `outcomes`.

        Args:
            method: `elicitation/create`, `sampling/createMessage` or `roots/list`.
            params: Its params.
            key: The key on the wire, any text; unlike other keys it may end in a number.

        Raises:
            HandlerError: The params are not those of the protocol.
        """
        ask = RawAsk(method=cast("Any", method), params=params or {})
        (outcome,) = await ask_named(self._execution, (), {key: ask})
        return cast("dict[str, Any]", outcome.value)

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

    async def _one(self, ask: Ask, given: str | None) -> Outcome[Any]:
        execution = self._execution
        await execution.enter_async("ask")
        ready = question(ask)
        key = execution.ask_key_for(ready.base, given)
        (outcome,) = await ask_all(execution, [(key, ready)])
        return outcome if given is None else named(outcome, given)

    async def _value(self, ask: Ask, given: str | None) -> Any:
        outcome = await self._one(ask, given)
        return outcome.value if isinstance(ask, Approve) else outcome.unwrap()


def execution_of(ctx: Context) -> Execution:
    """Return the execution behind a context, for the shapes that are built on it."""
    return ctx._execution  # pyright: ignore[reportPrivateUsage]


# --- from an ask to its answer ------------------------------------------------------------------


async def _ask_form(execution: Execution, message: str, form: Any, given: str | None) -> Any:
    """Return the accepted value of a plain form: what nearly every handler asks.

    Does what `ask_all` does for any ask, in fewer steps: a re-run comes here for every recorded
    answer, and `tests/bench/test_budget.py` counts them.
    """
    if execution.state is not RUNNING or get_inside():
        await execution.enter_async("ask")
    try:
        plain = kept_question if isinstance(form, type) else plain_form
        ready = plain(message, form)
    except (MessageTooLong, TypeError):  # what cannot be kept, or is no text
        ready = plain_form(message, form)
    if task_of(running_loop()) is not execution.task:
        key = execution.ask_key_for(ready.base, given)
        return (await ask_all(execution, [(key, ready)]))[0].unwrap()
    key = None if given is None else check_key(given)
    try:
        key = execution.keys.in_scope(key or execution.keys.derive(ready.base))
        entry = execution.replay.recall("ask", key, ready.digest, ready.note)
    except HandlerError as error:
        raise execution.fault(error) from None
    if entry is not None:
        value = ready.form.recall(entry.payload)  # pyright: ignore[reportOptionalMemberAccess]
        if value is not None:
            return value
        outcome = read_answered(execution, key, ready, entry.value())
        if outcome is not None:
            return outcome.unwrap()
    return (await execution.delivery.put(execution, [(key, ready)]))[key].unwrap()
