"""`ctx.answers`: what a native handler sees. Shows only answers that were asked for (S4-7)."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, overload

from antiphon.core.asks import Kind, Outcome
from antiphon.engine.call import Rejected
from antiphon.engine.execution import Execution
from antiphon.engine.questions import check_shape, read_answer, reasons
from antiphon.errors import AnswerInvalid
from antiphon.forms.form import Form, of

T = TypeVar("T")


class Answers:
    """The accepted answers of this call, by key."""

    __slots__ = ("_raw", "_run")

    def __init__(self, run: Execution) -> None:
        self._run = run
        self._raw: Mapping[str, Any] = {
            **run.call.unasked,
            **{e.key: e.value for e in run.call.entries if e.kind == "ask"},
        }

    @overload
    def get(self, key: str) -> Any: ...
    @overload
    def get(self, key: str, model: type[T]) -> T | None: ...
    def get(self, key: str, model: Any = None) -> Any:
        """Give the accepted, validated value under a key; None when there is none yet."""
        return self.outcome(key, model).value

    @overload
    def outcome(self, key: str) -> Outcome[Any]: ...
    @overload
    def outcome(self, key: str, model: type[T]) -> Outcome[T]: ...
    def outcome(self, key: str, model: Any = None) -> Outcome[Any]:
        """Tell accepted, declined, cancelled, expired and missing apart."""
        raw = self._raw.get(key)
        if raw is None:
            return Outcome("missing", None, key)
        form: Form[Any] | None = of(model) if model is not None else None
        kind = _kind(raw)
        if key in self._run.call.unasked:
            raw = check_shape(kind, key, raw)
        try:
            return read_answer(kind, raw, key, form)
        except AnswerInvalid as error:
            pending = self._run.call.pending.get(key)
            tries = pending.tries + 1 if pending is not None else 1
            self._run.reject(key, Rejected(tries, reasons(error)))
            return Outcome("missing", None, key)

    def __contains__(self, key: object) -> bool:
        """Tell whether anything came back under a key, a refusal included."""
        return key in self._raw

    def __iter__(self) -> Iterator[str]:
        """Give the keys under which something came back."""
        return iter(self._raw)

    def __repr__(self) -> str:
        """Show keys, never values."""
        return f"<Answers {sorted(self._raw)}>"


def _kind(raw: Mapping[str, Any]) -> Kind:
    """Tell the kind of an answer from its own members; there is no tag on the wire."""
    if "roots" in raw:
        return "roots"
    if "action" in raw:
        return "form" if "content" in raw or raw["action"] != "accept" else "url"
    return "sample" if "model" in raw else "form"
