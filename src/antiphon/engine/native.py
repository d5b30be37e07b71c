"""Native handlers: those that return `InputRequired` instead of awaiting `ctx.elicit`.

They too are run anew in every round, but need not take the same path: they look at `ctx.answers`
and `ctx.state`, and decide themselves what to ask. Owns what they read, and how what they return
is asked.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from antiphon.engine.approvals import decided_payload, named_by_caller, route_of
from antiphon.engine.mistakes import check_secret, too_many_asks, unable_to_ask
from antiphon.engine.outcome import ExecutionOutcome, Held, NeedsInput, Paused
from antiphon.engine.questions import (
    DECIDED,
    Asked,
    Question,
    check_key,
    check_shape,
    question,
    read_answer,
    read_approval,
    reasons,
)
from antiphon.engine.serialization.codec import codec_for
from antiphon.errors import AnswerInvalid, HandlerError, TooManyRounds
from antiphon.forms.form import Form, of
from antiphon.forms.models import is_model_type
from antiphon.protocol.asks import (
    Approval,
    Approve,
    Completion,
    InputRequired,
    Kind,
    Opened,
    Outcome,
    Root,
)
from antiphon.protocol.capabilities import missing
from antiphon.protocol.journal import Entry, decode_value

if TYPE_CHECKING:
    from antiphon.engine.execution import Execution

T = TypeVar("T")


class CallAnswers:
    """The answers of this call by key (`ctx.answers`), for handlers that return `InputRequired`.

    Only what this call asked for. `key in ctx.answers` says whether an answer has come, a refusal
    included; iterating yields the answered keys.
    """

    __slots__ = ("_execution", "_payloads")

    def __init__(self, execution: "Execution") -> None:
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
        """Return the accepted, validated value under a key; None when there is none yet.

        Args:
            key: Under which it was asked.
            model: How it is read: the form, or `Completion`, `Opened`, `list[Root]` or `Approval`.
                Without one, forms are plain dicts and the others are what they are.
        """
        return self.outcome(key, model).value

    @overload
    def outcome(self, key: str) -> Outcome[Any]: ...
    @overload
    def outcome(self, key: str, model: type[T]) -> Outcome[T]: ...
    def outcome(self, key: str, model: Any = None) -> Outcome[Any]:
        """Return how an ask ended: accepted, declined, cancelled, expired or missing.

        Raises:
            HandlerError: What was asked under this key is of another kind.
        """
        payload = self._payloads.get(key)
        unasked = key in self._execution.call.unasked
        # What came unasked is only the form that it is read as: no approval, and no visit.
        if payload is None or (unasked and (model is None or model is Approval)):
            return Outcome("missing", None, key)
        raw = decode_value(payload)
        if not unasked and (model is Approval or DECIDED in raw or "approval" in raw):
            if model not in (None, Approval):
                raise _is_approval(key)
            return self._approval(key, raw)
        read_as = _READ_AS.get(model) if _is_hashable(model) else None
        form: Form[Any] | None = of(model) if model is not None and read_as is None else None
        kind: Kind = "form" if form is not None else read_as or _kind(raw)
        if read_as is not None and not _fits_kind(raw, read_as, unasked=unasked):
            if unasked:
                return Outcome("missing", None, key)
            raise _of_another_kind(key, raw, model)
        if unasked:
            raw = check_shape(kind, key, raw)
        try:
            return read_answer(kind, raw, key, form)
        except AnswerInvalid as error:
            entry = self._execution.replay.peek("ask", key)
            secret = entry is not None and entry.secret
            self._execution.reject(key, reasons(error, secret=secret))
            return Outcome("missing", None, key)

    def _approval(self, key: str, raw: dict[str, Any]) -> Outcome[Any]:
        """Read the answer to an `Approve`: what people decided, or what the client said."""
        execution = self._execution
        try:
            return named_by_caller(read_approval(raw, key), execution.request.principal)
        except AnswerInvalid as error:
            execution.reject(key, reasons(error))
            return Outcome("missing", None, key)

    def __contains__(self, key: object) -> bool:
        """Return whether anything came back under a key, a refusal included."""
        return key in self._payloads

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys under which something came back."""
        return iter(self._payloads)

    def __repr__(self) -> str:
        """Show keys, never values."""
        return f"<CallAnswers {sorted(self._payloads)}>"


_READ_AS: Mapping[Any, Kind] = {
    Completion: "sample",
    Opened: "url",
    Root: "roots",
    list[Root]: "roots",
}
"""The kinds of answers that are no form, by the type that they are read as."""

_ASKED_WITH: Mapping[Kind, str] = {
    "form": "a form: read it with its model",
    "url": "ElicitUrl: read it with Opened",
    "sample": "Sample: read it with Completion",
    "roots": "ListRoots: read it with list[Root]",
}


def _is_hashable(model: Any) -> bool:
    return model is not None and not isinstance(model, Mapping)


def _fits_kind(raw: Mapping[str, Any], kind: Kind, *, unasked: bool) -> bool:
    """Return whether an answer is of a kind; a refusal is one of every kind."""
    if unasked and kind == "url":
        return False  # nobody was sent there
    if raw.get("action") in _REFUSALS:
        return True
    return _kind(raw) == kind


_REFUSALS = frozenset({"decline", "cancel", "expired", "unavailable"})


def _of_another_kind(key: str, raw: Mapping[str, Any], model: Any) -> HandlerError:
    name = "list[Root]" if model == list[Root] else model.__name__
    return HandlerError(f"{key!r} is no {name}: it was asked with {_ASKED_WITH[_kind(raw)]}")


def _kind(raw: Mapping[str, Any]) -> Kind:
    """Return the kind of an answer by its own members; there is no tag on the wire."""
    if "roots" in raw:
        return "roots"
    if "action" in raw:
        return "form" if "content" in raw or raw["action"] != "accept" else "url"
    return "sample" if "model" in raw else "form"


def ask_returned(execution: "Execution", value: InputRequired) -> ExecutionOutcome:
    """Check and note what a handler returned as `InputRequired`; return how its round ends.

    The client comes first, because it is there now: what others decide is put to them when the
    handler returns it again and the client has answered all of its own questions beside it.
    """
    limits = execution.environment.limits
    asked = {check_key(key): question(ask) for key, ask in value.asks.items()}
    if len(asked) > limits.asks_per_round:
        raise too_many_asks(limits.asks_per_round)
    before = [key for key, ready in asked.items() if _answered(execution, key, ready)]
    by_others = _put_to_others(execution, asked)
    if by_others:
        if len(before) == len(asked):
            raise _asked_again(before)
        by_others.update(before)  # what is answered stays so until the others have decided
    asked = {key: ready for key, ready in asked.items() if key not in by_others}
    if missing(execution.request.capabilities, [n for q in asked.values() for n in q.needs]):
        alone = [ready for ready in asked.values() if not execution.delivery.reaches_owner(ready)]
        if missing(execution.request.capabilities, [n for q in alone for n in q.needs]):
            raise unable_to_ask(execution, alone)
    for key, ready in asked.items():
        check_secret(execution, "ask", key, secret=ready.ask.secret)
        rejected = execution.call.rejected.get(key)
        if rejected is not None:
            rejected.check(key, limits.reasks)
        execution.replay.forget("ask", key)
        execution.note_asked(((key, ready),))
    execution.state_payload = _write_state(value.state)
    execution.native = True
    return _ending(execution)


def _write_state(state: Any) -> bytes:
    """Encode the state of a native handler: a JSON value, a model or a dataclass.

    Raises:
        HandlerError: It would come back as something else.
    """
    what = "InputRequired(state=...)"
    kind = cast("type[Any]", type(state))
    if is_model_type(kind) or is_dataclass(kind):
        return codec_for(kind).dump(state, what)
    _check_json(state, "state")
    return codec_for(Any).dump(state, what)


def _check_json(value: Any, where: str) -> None:
    """Refuse what JSON has no word for; it would come back as another type."""
    if value is None or isinstance(value, str | bool | int):
        return
    if isinstance(value, float) and isfinite(value):
        return
    if isinstance(value, dict):
        for key, inner in cast("dict[Any, Any]", value).items():
            if not isinstance(key, str):
                raise HandlerError(
                    f"InputRequired({where}) has the key {key!r}: keys of JSON are texts"
                )
            _check_json(inner, f"{where}[{key!r}]")
        return
    if isinstance(value, list):
        for at, inner in enumerate(cast("list[Any]", value)):
            _check_json(inner, f"{where}[{at}]")
        return
    raise HandlerError(
        f"InputRequired({where}) is a {type(value).__name__}, which is no JSON value and would "
        "come back as something else: use texts, numbers, lists and dicts, or give one model or "
        "dataclass as the whole state, and read it with ctx.state_as(...)"
    )


def read_state(payload: bytes, model: type[T]) -> T:
    """Read the state of a native handler as a type.

    Raises:
        HandlerError: It does not fit, or is no type.
    """
    codec = codec_for(model)
    wrong = codec.misfit(payload)
    if wrong:
        raise HandlerError(f"the state of this call is no {model.__name__}: {wrong}")
    return codec.load(payload)


def read_only(value: dict[str, Any]) -> Mapping[str, Any]:
    """Return an object that nobody can change, all the way down."""
    return MappingProxyType({key: _frozen(inner) for key, inner in value.items()})


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return read_only(cast("dict[str, Any]", value))
    if isinstance(value, list):
        return tuple(_frozen(one) for one in cast("list[Any]", value))
    return value


def _ending(execution: "Execution") -> ExecutionOutcome:
    """Return how a round ends whose asks are noted, unless it is one too many."""
    limits, journal = execution.environment.limits, execution.call.journal
    if execution.asked:
        if journal.asked >= limits.rounds:
            raise TooManyRounds(limits.rounds)
        return NeedsInput(execution.asked)
    if execution.held:
        return Held(execution.held)
    if journal.pauses >= limits.pauses:
        raise TooManyRounds(limits.pauses, "state-only rounds")
    return Paused()


def _put_to_others(execution: "Execution", asked: Mapping[str, Question]) -> set[str]:
    """Note the approvals that are not for the client; return their keys.

    They wait for people, or end at once where nobody can be asked.
    """
    keys: set[str] = set()
    for key, ready in asked.items():
        ask = ready.ask
        if not isinstance(ask, Approve) or not (ask.uses_inbox or ask.sure != "client"):
            continue
        route = route_of(execution, ask)
        if route == "client":
            continue
        keys.add(key)
        if _answered(execution, key, ready):
            continue
        execution.replay.forget("ask", key)
        if route == "inbox":
            execution.held = {**execution.held, key: Asked(ready)}
        else:
            payload = decided_payload(Approval("unavailable"))
            execution.record(Entry("ask", key, payload, ready.digest, ready.note))
    return keys


def _is_approval(key: str) -> HandlerError:
    return HandlerError(
        f"{key!r} was asked with Approve, so its answer is no form. "
        f"Read it with ctx.answers.get({key!r}, Approval)."
    )


def _asked_again(keys: Sequence[str]) -> HandlerError:
    return HandlerError(
        f"InputRequired asks {', '.join(map(repr, keys))} again, which has an answer in this call. "
        "Look at ctx.answers.get(key, Approval), or ask something else under another key."
    )


def _answered(execution: "Execution", key: str, ready: Question) -> bool:
    """Return whether this very question has an answer in this call."""
    entry = execution.replay.peek("ask", key)
    return entry is not None and entry.digest == ready.digest
