"""Scripted answers: from what a test says to what goes over the wire.

A script maps keys to answers. An answer is a value (a mapping, model or dataclass accepts a form,
`True` and `False` answer `ctx.approve` and consent to a URL, a text completes a sample, paths are
roots), one of `Accept`, `Decline`, `Cancel`, `Sampled` and `Roots`, a `Raw` wire answer, a function
from the ask to any of these, or a list of them: one for each time that the key is asked.
"""

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, cast

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from antiphon.client.asks import Accept, Cancel, Decline, Roots, Sampled

Script: TypeAlias = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Raw:
    """An answer exactly as it goes over the wire."""

    value: Any


class Missing:
    """Leave an ask without an answer in this round."""


MISSING = Missing()


class Unscripted(AssertionError):
    """The server asked what the script has no answer for."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"nothing in the script answers {key!r} ({message!r}): add it to answers=")
        self.key = key


@dataclasses.dataclass(frozen=True, slots=True)
class WireAsk:
    """What the server asked under a key, as it stood on the wire."""

    key: str
    method: str
    params: Mapping[str, Any]

    @property
    def message(self) -> str:
        """What a person reads; nothing for samples and roots."""
        return self.params.get("message", "")

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema of a form; empty for everything else."""
        return self.params.get("requestedSchema", {})

    @property
    def url(self) -> str:
        """The page to visit; nothing for everything else."""
        return self.params.get("url", "")


class Answerer:
    """Answers asks from a script; remembers how far each list of answers has been used."""

    def __init__(self, script: Script) -> None:
        """Take a script."""
        self._script = script
        self._used: dict[str, int] = {}

    def answers(self, asks: Iterable[WireAsk]) -> dict[str, Any]:
        """Answer the asks of one round as wire values.

        Raises:
            Unscripted: The script has no answer, or no further one.
        """
        found = {ask.key: self._next(ask) for ask in asks}
        return {key: value for key, value in found.items() if value is not MISSING}

    def _next(self, ask: WireAsk) -> Any:
        if ask.key not in self._script:
            raise Unscripted(ask.key, ask.message)
        answer = self._script[ask.key]
        if isinstance(answer, list) and ask.method != "roots/list":
            several = cast("list[Any]", answer)
            number = self._used.get(ask.key, 0)
            if number >= len(several):
                raise Unscripted(ask.key, ask.message)
            self._used[ask.key] = number + 1
            answer = several[number]
        return wire_answer(ask, answer)


def wire_answer(ask: WireAsk, answer: Any) -> Any:
    """Write one answer as the wire wants it for this ask."""
    if inspect.isroutine(answer):
        answer = answer(ask)
    if isinstance(answer, Raw):
        return answer.value
    if answer is MISSING:
        return MISSING
    if isinstance(answer, Decline):
        return {"action": "decline"}
    if isinstance(answer, Cancel):
        return {"action": "cancel"}
    if ask.method == "roots/list":
        roots = answer if isinstance(answer, Roots) else Roots(answer)
        return {"roots": [{"uri": uri} for uri in roots.uris]}
    if ask.method == "sampling/createMessage":
        return _sampled(answer)
    if ask.params.get("mode") == "url":
        return {"action": "accept" if answer is not False else "decline"}
    return {"action": "accept", "content": _content(ask, answer)}


def _sampled(answer: Any) -> dict[str, Any]:
    sampled = answer if isinstance(answer, Sampled) else Sampled(answer)
    content = sampled.content
    if isinstance(content, str):
        content = {"type": "text", "text": content}
    return {
        "role": "assistant",
        "content": content,
        "model": sampled.model,
        "stopReason": sampled.stop_reason,
    }


def _content(ask: WireAsk, answer: Any) -> Any:
    if isinstance(answer, Accept):
        answer = answer.content if answer.content is not None else {}
    if isinstance(answer, bool):
        return {next(iter(ask.schema.get("properties", {})), "approve"): answer}
    if isinstance(answer, BaseModel):
        return answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    if dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        return to_jsonable_python(answer)
    return answer
