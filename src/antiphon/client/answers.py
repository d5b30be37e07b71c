"""Who answers what the server asks, and the answers of one round.

An answerer is any object with one method per kind of ask that it can answer: `elicit(FormAsk)`,
`elicit_url(UrlAsk)`, `sample(SampleAsk)`, `roots(RootsAsk)`, each sync or async. The client
declares the capabilities of the methods that are there. An object that can do less than its methods
suggest, or sampling with tools, says so in an attribute `abilities`. Raising `Pass` leaves an ask
to the next answerer.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import anyio

from antiphon.client.asks import (
    Accept,
    AnyAsk,
    Cancel,
    Decline,
    FormAsk,
    Roots,
    RootsAsk,
    SampleAsk,
    Sampled,
    UrlAsk,
    fillable,
    wire_answer,
)
from antiphon.client.errors import Pass, Unanswered
from antiphon.client.fields import TypedAnswer, could_answer, split_answers
from antiphon.forms.schema import FlatSchema
from antiphon.protocol.asks import Kind
from antiphon.protocol.capabilities import Capability, required

Answerer: TypeAlias = object
"""Anything with methods named as above."""

METHODS: Mapping[Kind, str] = {
    "form": "elicit",
    "url": "elicit_url",
    "sample": "sample",
    "roots": "roots",
}
_NEEDS: Mapping[Kind, Capability] = {
    "form": "form",
    "url": "url",
    "sample": "sampling",
    "roots": "roots",
}


def abilities(answerer: Answerer | None) -> frozenset[Capability]:
    """Return the capabilities that an answerer serves."""
    if answerer is None:
        return frozenset()
    declared = getattr(answerer, "abilities", None)
    if declared is not None:
        return frozenset(cast("Iterable[Capability]", declared))
    return frozenset(
        _NEEDS[kind] for kind, name in METHODS.items() if callable(getattr(answerer, name, None))
    )


def capabilities(needs: Iterable[Capability]) -> dict[str, Any]:
    """Return the ClientCapabilities object to declare for these abilities."""
    order: tuple[Capability, ...] = ("form", "url", "sampling", "sampling.tools", "roots", "tasks")
    wanted = set(needs)
    return required(need for need in order if need in wanted)


def able(answerer: Answerer, ask: AnyAsk) -> bool:
    """Return whether an answerer takes this kind of ask."""
    return _NEEDS[ask.kind] in abilities(answerer)


def method_for(answerer: Answerer, ask: AnyAsk) -> Callable[[Any], Any]:
    """Return the method that answers this ask."""
    return getattr(answerer, METHODS[ask.kind])


def as_answerer(answers: object) -> Answerer | None:
    """Return the answerer of an `answers=`: itself, or made of a function for forms."""
    if answers is None or hasattr(answers, "abilities") or abilities(answers):
        return answers
    if callable(answers):
        return Answers(elicit=answers)
    raise TypeError(
        f"answers={type(answers).__name__} has none of the methods {', '.join(METHODS.values())}"
    )


class Combining:
    """Adds `|` to answerers: the left one is tried first."""

    def __or__(self, other: Answerer) -> "FirstOf":
        """Try this one, then the other."""
        return FirstOf(self, other)


class Answers(Combining):
    """An answerer made of plain functions, one per kind; sync ones run in a thread."""

    def __init__(
        self,
        *,
        elicit: Callable[[FormAsk], Any] | None = None,
        elicit_url: Callable[[UrlAsk], Any] | None = None,
        sample: Callable[[SampleAsk], Any] | None = None,
        roots: Callable[[RootsAsk], Any] | None = None,
        sampling_tools: bool = False,
    ) -> None:
        """Take the functions; `sampling_tools` says that `sample` handles tool use."""
        given: dict[str, Callable[[Any], Any] | None] = {
            "elicit": elicit,
            "elicit_url": elicit_url,
            "sample": sample,
            "roots": roots,
        }
        needs: set[Capability] = {_NEEDS[kind] for kind, name in METHODS.items() if given[name]}
        if sampling_tools and sample:
            needs.add("sampling.tools")
        self.abilities: frozenset[Capability] = frozenset(needs)
        for name, function in given.items():
            if function is not None:
                setattr(self, name, function)


class RawAnswers:
    """Answers the asks of legacy sessions as they come, for code that passes them on."""

    def __init__(
        self,
        raw: Callable[[str, Mapping[str, Any], str], Awaitable[Mapping[str, Any]]],
        can: Iterable[Capability],
    ) -> None:
        """Take an async function of method, params and key, and what is declared to the server.

        The function returns the answer as the protocol has it, or raises `AnswerFailed`.
        """
        self.raw = raw
        self.abilities: frozenset[Capability] = frozenset(can)

    async def elicit_url(self, ask: UrlAsk) -> Any:
        """Answer a visit that the server demands with an error instead of asking."""
        params = {"mode": "url", "message": ask.message, "url": ask.url}
        answer = await self.raw("elicitation/create", params, ask.key)
        return Accept() if answer.get("action") == "accept" else Decline()


class Deny(Combining):
    """Declines every form and every visit; has no model and no roots."""

    def elicit(self, ask: FormAsk) -> Decline:
        """Decline."""
        return Decline()

    def elicit_url(self, ask: UrlAsk) -> Decline:
        """Decline."""
        return Decline()


class Scripted(Combining):
    """Prepared answers by key; an ask without one is left to the next answerer.

    A value is an answer (`Accept`, `Decline`, `Cancel`, `Sampled`, `Roots`), a mapping (the content
    of a form), a text (a completion), a list (roots), or a function of the ask.
    """

    def __init__(self, answers: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Take answers as a mapping, as keywords, or both."""
        self._answers: dict[str, Any] = {**(answers or {}), **more}
        needs: set[Capability] = set()
        for value in self._answers.values():
            needs |= _could_answer(value)
        self.abilities: frozenset[Capability] = frozenset(needs)

    @staticmethod
    def parse(texts: Iterable[str]) -> "TypedScript":
        """Read `key.field=value`, `key=accept|decline|cancel` and `key=text`, as on a command line.

        Raises:
            ValueError: A text has no `=` or no key.
        """
        return TypedScript(split_answers(texts))

    def has(self, key: str) -> bool:
        """Return whether a key has an answer."""
        return key in self._answers

    def elicit(self, ask: FormAsk) -> Any:
        """Return the prepared content."""
        return self._answer(ask)

    def elicit_url(self, ask: UrlAsk) -> Any:
        """Return the prepared consent."""
        return self._answer(ask)

    def sample(self, ask: SampleAsk) -> Any:
        """Return the prepared completion."""
        return self._answer(ask)

    def roots(self, ask: RootsAsk) -> Any:
        """Return the prepared roots."""
        return self._answer(ask)

    def find(self, ask: AnyAsk) -> Any:
        """Return what was prepared for an ask: an answer, or a function that makes it.

        Raises:
            Pass: Nothing was.
        """
        try:
            return self._answers[ask.key]
        except KeyError:
            raise Pass from None

    def _answer(self, ask: AnyAsk) -> Any:
        value = self.find(ask)
        return value(ask) if callable(value) else value


class TypedScript(Scripted):
    """Prepared answers as texts: the form that asks gives them their types."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Take the texts by name."""
        super().__init__()
        self._pairs = tuple(pairs)
        self.abilities: frozenset[Capability] = could_answer(self._pairs)

    def has(self, key: str) -> bool:
        """Return whether a key has an answer."""
        return bool(TypedAnswer(self._pairs, key))

    def find(self, ask: AnyAsk) -> Any:
        """Return the texts for an ask as an answer.

        Raises:
            Pass: There are none.
        """
        typed = TypedAnswer(self._pairs, ask.key)
        if not typed:
            raise Pass
        return typed(ask)


def _could_answer(value: object) -> frozenset[Capability]:
    match value:
        case Accept(content=None) | Decline() | Cancel():
            return frozenset({"form", "url"})
        case Accept() | Mapping():
            return frozenset({"form"})
        case Sampled() | str():
            return frozenset({"sampling"})
        case Roots() | list() | tuple():
            return frozenset({"roots"})
        case _ if callable(value):
            return frozenset(getattr(value, "abilities", {"form", "url", "sampling", "roots"}))
        case _:
            return frozenset({"form"})


class FirstOf(Combining):
    """Tries answerers in order, such as a script, then a person."""

    def __init__(self, *answerers: Answerer) -> None:
        """Take the answerers, the first to be tried first."""
        self.answerers: tuple[Answerer, ...] = tuple(answerers)
        self.abilities: frozenset[Capability] = frozenset[Capability]().union(
            *(abilities(each) for each in answerers)
        )

    def choose(self, ask: AnyAsk) -> list[Answerer]:
        """Return those that take this kind of ask."""
        return [each for each in self.answerers if able(each, ask)]


# --- the answers of one round -------------------------------------------------------------------


async def answer_all(asks: Sequence[AnyAsk], answerer: Answerer | None) -> dict[str, Any]:
    """Return the wire answers of every ask of a round, made concurrently (MRTR-C-16).

    Raises:
        Unanswered: Some asks have no answer; it names all of them.
        AnswerInvalid: An answer does not fit its form.
        AnswerFailed: Sampling or roots were refused or failed (MRTR-C-12).
    """
    # A form that cannot be filled is refused before anybody is asked.
    forms = {ask.key: fillable(ask) for ask in asks if isinstance(ask, FormAsk)}
    if len(asks) == 1:
        return {asks[0].key: await _answer_alone(answerer, asks[0], forms)}
    answers: dict[str, Any] = {}
    failures: list[Exception] = []
    open_keys: list[str] = []

    async def one(ask: AnyAsk) -> None:
        try:
            answers[ask.key] = wire_answer(ask, await _ask(answerer, ask), forms)
        except Pass:
            open_keys.append(ask.key)
        except Exception as error:  # noqa: BLE001 - user code failed; the first error is raised
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for ask in asks:
            group.start_soon(one, ask)
    if failures:
        raise failures[0]
    if open_keys:
        raise Unanswered([ask.key for ask in asks if ask.key in open_keys])
    return {ask.key: answers[ask.key] for ask in asks}


async def _answer_alone(
    answerer: Answerer | None, ask: AnyAsk, forms: Mapping[str, FlatSchema]
) -> dict[str, Any]:
    try:
        return wire_answer(ask, await _ask(answerer, ask), forms)
    except Pass:
        raise Unanswered([ask.key]) from None


async def _ask(answerer: Answerer | None, ask: AnyAsk) -> Any:
    if isinstance(answerer, FirstOf):
        for each in answerer.choose(ask):
            try:
                return await _ask(each, ask)
            except Pass:
                continue
        raise Pass
    if answerer is None or not able(answerer, ask):
        raise Pass
    if type(answerer) in _LOOKED_UP:
        return await _looked_up(cast("Scripted", answerer), ask)
    method = method_for(answerer, ask)
    if inspect.iscoroutinefunction(method):
        return await method(ask)
    answer = await in_thread(method, ask)
    return await answer if inspect.isawaitable(answer) else answer


async def in_thread(function: Callable[..., Any], *args: object) -> Any:
    """Run a function that may wait for a person.

    In a daemon thread: after a timeout, an open prompt must not keep the loop or the process alive.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def finish(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        try:
            outcome = (function(*args), None)
        except StopIteration as error:
            outcome = (None, RuntimeError(f"an answerer raised {error!r}"))
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            outcome = (None, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, *outcome)

    threading.Thread(target=run, name="antiphon-answer", daemon=True).start()
    return await future


_LOOKED_UP = (Scripted, TypedScript)
"""Answerers whose answers are only looked up, so no thread is needed. Their subclasses may wait."""


async def _looked_up(answerer: Scripted, ask: AnyAsk) -> Any:
    answer = answerer.find(ask)
    if not callable(answer):
        return answer
    made = await in_thread(answer, ask)
    return await made if inspect.isawaitable(made) else made
