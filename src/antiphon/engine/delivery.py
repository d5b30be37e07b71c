"""How asks reach the client, and what else an execution asks of whoever runs it.

`Delivery` itself sends the asks out with the end of the round: its one instance `END_ROUND` serves
modern requests, and `tasks/delivery.py` derives from it for runs of tasks. `BackChannelDelivery`
sends the asks over a legacy session while the handler waits. `parked.py` has one for handlers that
are kept in memory. Owns running a call on a legacy session, the bounds that a token would carry
elsewhere, and what a client is told that cannot be asked.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from math import isfinite
from typing import Any, Protocol, TypeVar, cast

import msgspec

from antiphon.engine.approvals import read_answered
from antiphon.engine.call import Call
from antiphon.engine.context import Context
from antiphon.engine.environment import Environment
from antiphon.engine.execution import Batch, Execution
from antiphon.engine.handler import Handler
from antiphon.engine.mistakes import check_secret, too_many_asks, unable_to_ask
from antiphon.engine.outcome import Completed, ExecutionOutcome, Failed, Held, NeedsInput, Paused
from antiphon.engine.questions import Asked, Question, check_shape, note_question, unanswered
from antiphon.errors import (
    TASKS_CAPABILITY,
    CannotAsk,
    CapabilityMissing,
    HandlerError,
    InvalidRequest,
    TooManyRounds,
    UrlRequired,
    capability_names,
    needed,
)
from antiphon.ports import LeasedRound, LeasedTaskRun
from antiphon.protocol.asks import Approval, ElicitUrl, Outcome, seconds
from antiphon.protocol.capabilities import allows
from antiphon.protocol.journal import Entry, Journal, encode_value
from antiphon.protocol.request import LEVELS, MODERN, Channel, LegacyAsk, Request
from antiphon.protocol.text import safe
from antiphon.seal.claims import encode_journal

T = TypeVar("T")

HOLD = 22.0
"""Seconds for which a round that asks nothing is held back. Proxies often end a request after 30,
and clients end a call after ten rounds: a call can wait for ten times as long."""

_URL_ERROR_SINCE = "2025-11-25"
_TEXT = 2_000
"""Characters of a message to the client."""


class WorkMeter(Protocol):
    """What measures the work of a handler, and not its waiting for a client."""

    def stop(self) -> None:
        """The handler waits from now on."""
        ...

    async def start(self) -> None:
        """The handler goes on, when it may."""
        ...


async def wait_for_client(execution: Execution, answer: Awaitable[T]) -> T:
    """Wait for the client inside the handler, whose work is not measured meanwhile."""
    meter = execution.meter
    if meter is None:
        return await answer
    meter.stop()
    try:
        answered = await answer
    except Exception:
        await meter.start()
        raise
    await meter.start()
    return answered


class Delivery:
    """What an execution needs of its host; the defaults fit a modern request."""

    background = False
    """Whether the execution is a run of a task: no client waits for its end."""

    def put(self, execution: Execution, batch: Batch) -> Awaitable[dict[str, Outcome[Any]]]:
        """Put asks to the client until each has an answer that fits.

        No coroutine on purpose: where an ask ends the round, `ask` raises, before anything is
        awaited.
        """
        self._check(execution, batch)
        return self._answered(execution, batch, self.ask(execution, batch))

    def _check(self, execution: Execution, batch: Batch) -> None:
        """Refuse asks that the client cannot answer, or that are too many or not expected here."""
        limits, capabilities = execution.environment.limits, execution.request.capabilities
        for key, ready in batch:
            for need in ready.needs:
                if not allows(capabilities, need) and not self.reaches_owner(ready):
                    raise unable_to_ask(execution, [ready for _, ready in batch])
            if ready.ask.secret:
                check_secret(execution, "ask", key, secret=True)
            if execution.replay.may_be_behind():
                execution.check_new("ask", key, ready.note)
        if len(execution.asked) + len(batch) > limits.asks_per_round:
            raise too_many_asks(limits.asks_per_round)
        if execution.call.journal.asked >= limits.rounds:
            raise TooManyRounds(limits.rounds)

    async def _answered(
        self, execution: Execution, batch: Batch, answers: Awaitable[Sequence[Any]]
    ) -> dict[str, Outcome[Any]]:
        """Read answers that come while the handler waits: in legacy sessions and parked handlers.

        What does not fit is put again.
        """
        outcomes: dict[str, Outcome[Any]] = {}
        while again := _take(execution, batch, await answers, outcomes):
            self._check(execution, again)
            batch, answers = again, self.ask(execution, again)
        return outcomes

    def ask(self, execution: Execution, batch: Batch) -> Awaitable[Sequence[Any]]:
        """Put asks that were checked; return their raw, well-shaped answers, or end the round.

        This one always ends the round. In the handler's own task `suspend` raises at once, so that
        nothing is returned; in a branch it returns what waits for the end of the round.
        """
        return execution.suspend(batch, execution.note_asked(batch))

    async def decision(self, execution: Execution, key: str, question: Question) -> Approval | None:
        """Return what people have decided in the inbox; None while they have not.

        A request never finds a decision: it puts the question, and a run of a task goes on.
        """
        return None

    async def cancel_wanted(self, execution: Execution) -> bool:
        """Return whether an execution that is cancelled is so by its client, for good.

        A server that stops cancels runs of tasks too; those go on elsewhere.
        """
        return True

    def reaches_owner(self, question: Question) -> bool:
        """Return whether the caller can answer in the inbox what the client cannot be asked.

        Only in a run of a task: its questions are in the inbox of its caller, too.
        """
        return False

    async def pause(self, execution: Execution, delay: float) -> None:
        """End a state-only round, or go on where rounds do not end."""
        await execution.suspend((), execution.branch())

    async def wait(self, execution: Execution, delay: float) -> None:
        """Wait inside the round while it may be held back, and then end it.

        A run of a task ends at once instead: its next one begins after the delay.
        """
        if self.background:
            return await execution.pause(delay)
        now = asyncio.get_running_loop().time()
        if execution.held_since is None:
            execution.held_since = now
        left = max(0.0, execution.held_since + HOLD - now)
        if delay >= left:
            return await execution.pause(left)
        await wait_for_client(execution, asyncio.sleep(delay))

    async def leased(self, execution: Execution) -> LeasedRound | LeasedTaskRun | None:
        """Return the claim under which an effect runs, with what was learned before the effect.

        None where nothing was redeemed.
        """
        call = execution.call
        if not execution.fence:
            return None
        learned, prefix = execution.learned([*call.timed, *execution.replay.fresh]), None
        if learned:
            place = f"prefix {call.id} {call.number}"
            plain = encode_journal(Journal(b"", learned))
            prefix = await execution.environment.protect(plain, place)
        return LeasedRound(call.id, call.number, execution.fence, prefix)

    async def report(
        self, execution: Execution, progress: float, total: float | None, message: str | None
    ) -> None:
        """Report progress, if the client wants it; it must strictly increase."""
        request = execution.request
        if request.progress_token is None:
            return
        if not (progress > request.progress and isfinite(progress)):
            return
        request.progress = progress
        params: dict[str, Any] = {"progressToken": request.progress_token, "progress": progress}
        if total is not None and isfinite(total):
            params["total"] = total
        if message is not None:
            params["message"] = safe(message, _TEXT)
        await request.channel.notify("notifications/progress", params)

    async def log(self, execution: Execution, data: Any, level: str, logger: str | None) -> None:
        """Send a log message, if the client wants that level; silent while replaying."""
        if level not in LEVELS:
            raise HandlerError(f"log level {level!r} is none of {', '.join(LEVELS)}")
        request = execution.request
        if request.log_level is None or execution.replay.unread:
            return
        if LEVELS.index(level) < LEVELS.index(request.log_level):
            return
        params: dict[str, Any] = {
            "level": level,
            "data": safe(data, _TEXT) if isinstance(data, str) else data,
        }
        if logger is not None:
            params["logger"] = logger
        await request.channel.notify("notifications/message", params)

    async def visited(self, execution: Execution, key: str) -> None:
        """Tell the client that the visit of a URL has done its work."""

    def url_error(self, execution: Execution, key: str, ask: ElicitUrl) -> UrlRequired | None:
        """Return the error that sends the client to a URL, where it cannot be asked otherwise."""
        return None

    async def end(self) -> None:
        """Nobody will bring the token of this round: unwind a handler that still waits for it."""

    def wake_without_request(self, execution: Execution) -> None:
        """A parked handler goes on although no request has come."""


def _take(
    execution: Execution, batch: Batch, raws: Sequence[Any], outcomes: dict[str, Outcome[Any]]
) -> Batch:
    """Record answers that came while the handler waited; return what must be asked again."""
    again: list[tuple[str, Question]] = []
    for (key, ready), raw in zip(batch, raws, strict=True):
        payload, secret = encode_value(raw), ready.ask.secret
        outcome = read_answered(execution, key, ready, raw)
        if outcome is None:
            again.append((key, ready))
        else:
            outcomes[key] = outcome
            execution.record(Entry("ask", key, payload, ready.digest, ready.note, secret=secret))
    return again


END_ROUND = Delivery()
"""The asks go out with the end of the round."""


class BackChannelDelivery(Delivery):
    """Asks go out while the handler waits; nothing is sealed and nothing is run again."""

    def __init__(self, request: Request, environment: Environment) -> None:
        self._channel = back_channel(request)
        self._limits = environment.limits
        self._rounds = 0
        self._pauses = 0
        self._entered = 0

    async def ask(self, execution: Execution, batch: Batch) -> Sequence[Any]:
        """Put the asks, all at once; what comes back malformed is asked for again."""
        channel = self._channel
        if channel is None:
            raise CannotAsk(_NO_SESSION)
        self._rounds += 1
        if self._rounds > self._limits.rounds:
            raise TooManyRounds(self._limits.rounds)
        await execution.call.tell(execution.environment.store)
        answers: dict[str, Any] = {}
        open_: dict[str, Question] = dict(batch)
        if execution.request.audit is not None:
            for key, put in batch:
                note_question(execution.request.audit, key, put)
        while open_:
            requests = {key: self._request(execution, key, q) for key, q in open_.items()}
            raws = await wait_for_client(execution, channel.ask(requests))
            for key, ready in tuple(open_.items()):
                try:
                    answers[key] = _shaped(ready, key, raws.get(key))
                except InvalidRequest as error:
                    execution.reject(key, error.message)
                else:
                    del open_[key]
        return [answers[key] for key, _ in batch]

    def _request(self, execution: Execution, key: str, ready: Question) -> LegacyAsk:
        rejected = execution.call.rejected.get(key)
        body = msgspec.json.decode(ready.body(rejected.reason if rejected else ""))
        span = ready.ask.timeout or ready.ask.ttl or execution.handler.options.ttl
        limit = seconds(span) if span is not None else self._limits.legacy_ask.total_seconds()
        return LegacyAsk(body["method"], body.get("params", {}), limit)

    async def pause(self, execution: Execution, delay: float) -> None:
        """Go on at once, or after the delay: there is no round to end."""
        self._pauses += 1
        if self._pauses > self._limits.pauses:
            raise TooManyRounds(self._limits.pauses, "pauses")
        await wait_for_client(execution, asyncio.sleep(min(delay, HOLD)))

    async def wait(self, execution: Execution, delay: float) -> None:
        """Wait: there is no round to end."""
        await execution.pause(delay)

    async def leased(self, execution: Execution) -> None:
        """Nothing was redeemed: an effect runs under no claim of a round."""

    async def visited(self, execution: Execution, key: str) -> None:
        """Tell the client that the visit of a URL has done its work."""
        await execution.request.channel.visited(key)

    def url_error(self, execution: Execution, key: str, ask: ElicitUrl) -> UrlRequired | None:
        """Return the error after which the client visits the URL and calls anew.

        Raises:
            CannotAsk: The call has acted or remembered; a new call would do it again.
        """
        if self._channel is not None or execution.request.version < _URL_ERROR_SINCE:
            return None
        if any(entry.kind in ("memo", "effect") for entry in execution.replay.entries()):
            raise CannotAsk(
                f"the visit {key!r} can only be asked for by ending this call, because the "
                "connection has no session; but the call has acted or remembered already, and a "
                "new call would do it again. Ask for the visit first."
            )
        return UrlRequired(ask.message, ask.url, execution.call.id)

    async def answer(self, execution: Execution, outcome: NeedsInput | Paused) -> Call:
        """Put what a native handler returned; return the call with which to enter it again."""
        self._entered += 1
        if self._entered > self._limits.legacy_rounds:
            raise TooManyRounds(self._limits.legacy_rounds, "re-entries for a legacy client")
        raws: dict[str, Any] = {}
        asks: Mapping[str, Asked] = outcome.asks if isinstance(outcome, NeedsInput) else {}
        if asks:
            batch = [(key, asked.question) for key, asked in asks.items()]
            raws = dict(zip(asks, await self.ask(execution, batch), strict=True))
        else:
            await self.pause(execution, 0.0)
        now = execution.environment.clock()
        pending = tuple([one.pending(key, now, native=True) for key, one in asks.items()])
        call = execution.call.next(execution.journal(), pending)
        call.accept_pushed(raws, now)
        return call


async def run_in_session(
    environment: Environment,
    handler: Handler,
    request: Request,
    call: Call,
    arguments: Mapping[str, Any] | None,
) -> tuple[Execution, Completed | Held | Failed]:
    """Run a call of a legacy session: its asks are answered in place, so it completes or fails.

    Returns its last execution and how it ended: `Held` when somebody who is not the client has to
    decide. Only a native handler is executed more than once, because its asks are what it returns.
    """
    if request.audit is not None:
        await request.audit.begin(call.id, restarted=bool(call.generation))
    delivery = BackChannelDelivery(request, environment)
    while True:
        execution = Execution.of(environment, handler, request, call, delivery)
        # Bound anew each time: a native handler that is entered again gets values of its own.
        outcome: ExecutionOutcome = await execution.run(Context(execution), handler.bind(arguments))
        if isinstance(outcome, Completed | Held | Failed):
            return execution, outcome
        if not isinstance(outcome, NeedsInput | Paused):
            refused = CannotAsk("a call of a legacy session cannot become a task")
            return execution, Failed(refused)
        try:
            call = await delivery.answer(execution, outcome)
        except Exception as error:  # noqa: BLE001 - whatever it is, the call has failed
            return execution, Failed(error)


def _shaped(ready: Question, key: str, raw: object) -> dict[str, Any]:
    if unanswered(raw):
        return cast("dict[str, Any]", raw)
    return check_shape(ready.kind, key, raw)


def back_channel(request: Request) -> Channel | None:
    """Return the channel of a legacy request if it can carry asks."""
    return request.channel if request.channel.can_ask else None


# --- clients that cannot be asked --------------------------------------------------------------

_NO_SESSION = (
    "this connection has no session over which the server could ask. Connect with a session "
    "(initialize, then Mcp-Session-Id), or with a client that speaks 2026-07-28"
)
_SINCE = {
    "elicitation.form": "2025-06-18",
    "elicitation.url": "2025-11-25",
    "sampling.tools": "2025-11-25",
    TASKS_CAPABILITY: MODERN,
}


def lacking(error: CapabilityMissing, request: Request) -> str:
    """Return what to tell a legacy client: what it lacks and what would help."""
    names = capability_names(error.required)
    needs = f"{error.what} needs {needed(error.required)}"
    if back_channel(request) is None and TASKS_CAPABILITY not in names:
        return f"{needs}, but {_NO_SESSION}. {error.done}."
    newest = max(_SINCE.get(name, "") for name in names)
    if newest > request.version:
        return (
            f"{needs}. This client speaks revision {request.version} of the protocol, which does "
            f"not have all of that. {error.done}. Use a client of revision {newest} or later."
        )
    return error.message
