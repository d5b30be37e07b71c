"""Who answers what the server asks. Knows no transport; each answer is a plain value.

An answerer is any object with one method per kind of ask that it can answer: `elicit(FormAsk)`,
`elicit_url(UrlAsk)`, `sample(SampleAsk)`, `roots(RootsAsk)`, each sync or async. What it has is
what the client declares, no more. An object that can do less than its methods suggest, or sampling
with tools, says so in an attribute `abilities`. Raising `Pass` leaves an ask to the next answerer.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast

from antiphon.client.errors import Pass
from antiphon.client.parse import TypedAnswer, could_answer, split_answers
from antiphon.client.values import (
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
)
from antiphon.core.asks import Kind
from antiphon.core.capabilities import Capability, required

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
    """Tell what an answerer can do, exactly."""
    if answerer is None:
        return frozenset()
    declared = getattr(answerer, "abilities", None)
    if declared is not None:
        return frozenset(cast("Iterable[Capability]", declared))
    return frozenset(
        _NEEDS[kind] for kind, name in METHODS.items() if callable(getattr(answerer, name, None))
    )


def capabilities(needs: Iterable[Capability]) -> dict[str, Any]:
    """Build the ClientCapabilities object to declare for these abilities."""
    order: tuple[Capability, ...] = ("form", "url", "sampling", "sampling.tools", "roots", "tasks")
    wanted = set(needs)
    return required(need for need in order if need in wanted)


def able(answerer: Answerer, ask: AnyAsk) -> bool:
    """Tell whether an answerer takes this kind of ask."""
    return _NEEDS[ask.kind] in abilities(answerer)


def method_for(answerer: Answerer, ask: AnyAsk) -> Callable[[Any], Any]:
    """Find the method that answers this ask."""
    return getattr(answerer, METHODS[ask.kind])


def as_answerer(answers: object) -> Answerer | None:
    """Take what a user gave as `answers=`: an answerer, or a function for forms."""
    if answers is None or hasattr(answers, "abilities") or abilities(answers):
        return answers
    if callable(answers):
        return Answers(elicit=answers)
    raise TypeError(
        f"answers={type(answers).__name__} has none of the methods {', '.join(METHODS.values())}"
    )


class Combining:
    """Gives answerers the `|` that tries the left one first."""

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
        self.abilities = frozenset(needs)
        for name, function in given.items():
            if function is not None:
                setattr(self, name, function)


class Deny(Combining):
    """Decline every form and every visit; offer no model and no roots."""

    def elicit(self, ask: FormAsk) -> Decline:
        """Decline."""
        return Decline()

    def elicit_url(self, ask: UrlAsk) -> Decline:
        """Decline."""
        return Decline()


class Scripted(Combining):
    """Answers written beforehand, by key; asks without one are passed on.

    A value is an answer (`Accept`, `Decline`, `Cancel`, `Sampled`, `Roots`), a mapping (the content
    of a form), a text (a completion), a list (roots), or a function of the ask.
    """

    def __init__(self, answers: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Take answers as a mapping, as keywords, or both."""
        self._answers: dict[str, Any] = {**(answers or {}), **more}
        needs: set[Capability] = set()
        for value in self._answers.values():
            needs |= _could_answer(value)
        self.abilities = frozenset(needs)

    @staticmethod
    def parse(texts: Iterable[str]) -> "TypedScript":
        """Read `key.field=value`, `key=accept|decline|cancel` and `key=text`, as on a command line.

        Raises:
            ValueError: A text has no `=` or no key.
        """
        return TypedScript(split_answers(texts))

    def has(self, key: str) -> bool:
        """Tell whether a key has an answer."""
        return key in self._answers

    def elicit(self, ask: FormAsk) -> Any:
        """Give the written content."""
        return self._answer(ask)

    def elicit_url(self, ask: UrlAsk) -> Any:
        """Give the written consent."""
        return self._answer(ask)

    def sample(self, ask: SampleAsk) -> Any:
        """Give the written completion."""
        return self._answer(ask)

    def roots(self, ask: RootsAsk) -> Any:
        """Give the written roots."""
        return self._answer(ask)

    def _answer(self, ask: AnyAsk) -> Any:
        try:
            value = self._answers[ask.key]
        except KeyError:
            raise Pass from None
        return value(ask) if callable(value) else value


class TypedScript(Scripted):
    """Answers as texts: what they mean is known when the form that asks is."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Take the texts by name."""
        super().__init__()
        self._pairs = tuple(pairs)
        self.abilities = could_answer(self._pairs)

    def has(self, key: str) -> bool:
        """Tell whether a key has an answer."""
        return bool(TypedAnswer(self._pairs, key))

    def _answer(self, ask: AnyAsk) -> Any:
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
    """Try answerers in order: the script, then the person."""

    def __init__(self, *answerers: Answerer) -> None:
        """Take the answerers, the first to be tried first."""
        self.answerers = tuple(answerers)
        self.abilities = frozenset[Capability]().union(*(abilities(each) for each in answerers))

    def choose(self, ask: AnyAsk) -> list[Answerer]:
        """List those that take this kind of ask."""
        return [each for each in self.answerers if able(each, ask)]
