"""Native handlers: those that return `InputRequired` instead of awaiting `ctx.elicit`.

They too are run anew in every round, but need not take the same path: they look at `ctx.answers`
and `ctx.state`, and decide themselves what to ask. Owns what they read, and how what they return
is asked.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from antiphon.core.asks import Approve, Kind, Outcome
from antiphon.core.capabilities import missing
from antiphon.core.journal import decode_value
from antiphon.core.outcome import InputRequired
from antiphon.engine.mistakes import check_secret, too_many_asks, unable_to_ask
from antiphon.engine.outcome import ExecutionOutcome, NeedsInput, Paused
from antiphon.engine.questions import check_key, check_shape, question, read_answer, reasons
from antiphon.engine.serialization import codec_for
from antiphon.errors import AnswerInvalid, HandlerError, TooManyRounds
from antiphon.forms.form import Form, of

if TYPE_CHECKING:
    from antiphon.engine.execution import Execution

T = TypeVar("T")


class CallAnswers:
    """The accepted answers of this call, by key: only what was asked for."""

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
        if key in self._execution.call.unasked:
            raw = check_shape(kind, key, raw)
        try:
            return read_answer(kind, raw, key, form)
        except AnswerInvalid as error:
            call = self._execution.call
            self._execution.reject(key, reasons(error), call.pending.get(key))
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


def _kind(raw: Mapping[str, Any]) -> Kind:
    """Return the kind of an answer by its own members; there is no tag on the wire."""
    if "roots" in raw:
        return "roots"
    if "action" in raw:
        return "form" if "content" in raw or raw["action"] != "accept" else "url"
    return "sample" if "model" in raw else "form"


def _not_the_client(key: str) -> HandlerError:
    return HandlerError(
        f"InputRequired puts {key!r} to the client, whose answer is not enough for an approval "
        'with by=, fallback="inbox" or assurance=. Ask it with await ctx.approve(...), or declare '
        "it with @server.tool(approve=Approve(...))."
    )


def ask_returned(execution: "Execution", value: InputRequired) -> ExecutionOutcome:
    """Check and note what a handler returned as `InputRequired`; return how its round ends."""
    limits, old = execution.environment.limits, execution.call.journal
    for key, ask in value.asks.items():
        if isinstance(ask, Approve) and (ask.uses_inbox or ask.sure != "client"):
            raise _not_the_client(key)
    asked = {check_key(key): question(ask) for key, ask in value.asks.items()}
    if missing(execution.request.capabilities, [n for q in asked.values() for n in q.needs]):
        raise unable_to_ask(execution, list(asked.values()))
    for key, ready in asked.items():
        check_secret(execution, "ask", key, secret=ready.ask.secret)
        rejected = execution.call.rejected.get(key)
        if rejected is not None:
            execution.check_tries(key, rejected)
        execution.replay.forget("ask", key)
        execution.note_asked(((key, ready),))
    if len(value.asks) > limits.asks_per_round:
        raise too_many_asks(limits.asks_per_round)
    execution.state_payload = codec_for(Any).dump(value.state, "InputRequired(state=...)")
    execution.native = True
    if value.asks and old.asked >= limits.rounds:
        raise TooManyRounds(limits.rounds)
    if not value.asks and old.pauses >= limits.pauses:
        raise TooManyRounds(limits.pauses, "state-only rounds")
    return NeedsInput(execution.asked) if value.asks else Paused()
