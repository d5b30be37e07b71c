"""Asking: naming asks, recalling answers, putting asks to the client, reading what comes back.

Everything here works on one execution; how the asks reach the client is its delivery.
"""

from collections.abc import Sequence
from typing import Any

from antiphon.core.asks import Ask, Outcome
from antiphon.core.capabilities import allows, require
from antiphon.core.journal import Entry, decode_value, encode_value
from antiphon.core.outcome import InputRequired
from antiphon.engine.call import Rejected
from antiphon.engine.execution import Batch, Execution
from antiphon.engine.outcome import ExecutionOutcome, NeedsInput, Paused
from antiphon.engine.questions import Question, check_key, plain_form, question, reasons
from antiphon.engine.serialization import codec_for
from antiphon.errors import AnswerInvalid, HandlerError, ToolError, TooManyRounds


async def ask(execution: Execution, items: Sequence[tuple[str | None, Ask]]) -> list[Outcome[Any]]:
    """Return the outcomes of asks, naming them first: recalled, or put to the client."""
    await execution.enter_async("ask")
    ready = [(given, question(ask)) for given, ask in items]
    return await _ask(execution, [(execution.key_for(q.base, given), q) for given, q in ready])


async def ask_one(execution: Execution, given: str | None, ask: Ask) -> Outcome[Any]:
    """Return the outcome of one ask: `ask` without its lists."""
    if execution.dead_calls:
        await execution.enter_async("ask")
    execution.enter("ask")
    ready = question(ask)
    key, entry = execution.recall_ask(ready, given)
    outcome = None if entry is None else _read(execution, key, ready, entry)
    return await _put_one(execution, key, ready) if outcome is None else outcome


async def ask_form(execution: Execution, given: str | None, message: str, form: Any) -> Any:
    """Return the accepted value of a plain form: what nearly every handler asks."""
    if execution.dead_calls:
        await execution.enter_async("ask")
    ready = plain_form(message, form)
    key, entry = execution.recall_ask(ready, given)
    if entry is not None:
        value = ready.form.recall(entry.payload) if ready.form is not None else None
        if value is not None:
            return value
        outcome = _read(execution, key, ready, entry)
        if outcome is not None:
            return outcome.unwrap()
    outcomes: dict[str, Outcome[Any]] = {}
    await _answered(execution, [(key, ready)], outcomes)
    return outcomes[key].unwrap()


async def _put_one(execution: Execution, key: str, ready: Question) -> Outcome[Any]:
    outcomes: dict[str, Outcome[Any]] = {}
    await _answered(execution, [(key, ready)], outcomes)
    return outcomes[key]


async def ask_named(execution: Execution, items: Sequence[tuple[str, Ask]]) -> list[Outcome[Any]]:
    """Return the outcomes of asks that have their keys."""
    return await _ask(execution, [(key, question(ask)) for key, ask in items])


async def _ask(execution: Execution, batch: Batch) -> list[Outcome[Any]]:
    outcomes: dict[str, Outcome[Any]] = {}
    unanswered: list[tuple[str, Question]] = []
    for key, ready in batch:
        outcome = _recall(execution, key, ready)
        if outcome is None:
            unanswered.append((key, ready))
        else:
            outcomes[key] = outcome
    if unanswered:
        await _answered(execution, unanswered, outcomes)
    return [outcomes[key] for key, _ in batch]


async def _answered(
    execution: Execution, batch: list[tuple[str, Question]], outcomes: dict[str, Outcome[Any]]
) -> None:
    """Put asks until each has an answer that fits; most rounds end in here."""
    limits, capabilities = execution.environment.limits, execution.request.capabilities
    while batch:
        for key, ready in batch:
            for need in ready.needs:
                if not allows(capabilities, need):
                    require(capabilities, ready.needs, f"asking for {key!r}")
            if ready.ask.secret:
                check_secret(execution, "ask", key, secret=True)
            if execution.replay.unread:
                execution.check_new("ask", key, ready.note)
        if len(execution.asked) + len(batch) > limits.asks_per_round:
            raise _too_many_asks(limits.asks_per_round)
        if execution.call.journal.asked >= limits.rounds:
            raise TooManyRounds(limits.rounds)
        raws = await execution.delivery.ask(execution, batch)
        batch = _take(execution, batch, raws, outcomes)


def _recall(execution: Execution, key: str, ready: Question) -> Outcome[Any] | None:
    entry = execution.recall("ask", key, ready.digest, ready.note)
    return None if entry is None else _read(execution, key, ready, entry)


def _read(execution: Execution, key: str, ready: Question, entry: Entry) -> Outcome[Any] | None:
    """Read a recorded answer; None when it does not fit and is to be asked for again."""
    try:
        return ready.read(decode_value(entry.payload), key)
    except AnswerInvalid as error:
        pending = execution.call.pending.get(key)
        tries = pending.tries + 1 if pending is not None else 1
        reject(execution, key, Rejected(tries, reasons(error)))
        return None


def reject(execution: Execution, key: str, rejected: Rejected) -> None:
    """Drop an answer that does not fit; it will be asked for again, or the call ends."""
    execution.replay.forget("ask", key)
    check_tries(execution, key, rejected)
    execution.call.rejected[key] = rejected


def check_tries(execution: Execution, key: str, rejected: Rejected) -> None:
    limit = execution.environment.limits.reasks
    if rejected.tries > limit:
        raise ToolError(f"The answer to {key!r} did not fit after {limit} more tries.")


def check_secret(execution: Execution, kind: str, key: str, *, secret: bool) -> None:
    """Refuse a secret that could be kept nowhere but in the token."""
    if secret and not execution.environment.spill and execution.request.era == "modern":
        raise HandlerError(
            f"{kind} {key!r} is secret=True, so its value must stay out of the token, and this "
            "server has no store to keep it in. Give Server(store=...) one."
        )


def _too_many_asks(limit: int) -> HandlerError:
    return HandlerError(
        f"more than {limit} asks in one round: ask for less at a time, or raise "
        "Limits(asks_per_round=...)"
    )


def _take(
    execution: Execution, batch: Batch, raws: Sequence[Any], outcomes: dict[str, Outcome[Any]]
) -> list[tuple[str, Question]]:
    """Record answers that came while the handler waited; return what must be asked again."""
    again: list[tuple[str, Question]] = []
    for (key, ready), raw in zip(batch, raws, strict=True):
        payload = encode_value(raw)
        try:
            outcomes[key] = ready.read(raw, key)
        except AnswerInvalid as error:
            # In this request (old sessions), or in the one before it (parked handlers).
            before = execution.call.rejected.get(key) or execution.call.pending.get(key)
            tries = before.tries + 1 if before is not None else 1
            reject(execution, key, Rejected(tries, reasons(error)))
            again.append((key, ready))
            continue
        secret = ready.ask.secret
        execution.record("ask", key, payload, ready.digest, ready.note, secret=secret)
    return again


def ask_returned(execution: Execution, value: InputRequired) -> ExecutionOutcome:
    """Check and put what a handler returned as `InputRequired`."""
    limits, old = execution.environment.limits, execution.call.journal
    for key, ask in value.asks.items():
        check_key(key)
        ready = question(ask)
        require(execution.request.capabilities, ready.needs, f"asking for {key!r}")
        check_secret(execution, "ask", key, secret=ask.secret)
        rejected = execution.call.rejected.get(key)
        if rejected is not None:
            check_tries(execution, key, rejected)
        execution.replay.forget("ask", key)
        execution.put(((key, ready),))
    if len(value.asks) > limits.asks_per_round:
        raise _too_many_asks(limits.asks_per_round)
    execution.state_payload = codec_for(Any).dump(value.state, "InputRequired(state=...)")
    execution.native = True
    if value.asks and old.asked >= limits.rounds:
        raise TooManyRounds(limits.rounds)
    if not value.asks and old.pauses >= limits.pauses:
        raise TooManyRounds(limits.pauses, "state-only rounds")
    return NeedsInput(execution.asked) if value.asks else Paused()
