"""Calls on OpenTelemetry: a span for each round and each run of a task, and what is counted.

`Server(telemetry=OpenTelemetry())` turns it on; a server without it pays nothing. The rounds of one
call are separate requests to any process. Where the client traces, its trace encloses them all;
where it does not, they are in the trace of round one, whose context travels in the token. Either
way every later span links to round one.

A span costs what the SDK takes to make one: its attributes are set at once when the round ends, and
not at all where it is not sampled.
"""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager

from opentelemetry import metrics, trace

from antiphon.integrations.telemetry.counts import CountedEvents, Levels, OpenRounds
from antiphon.integrations.telemetry.spans import TracedRound, TracedRun, written
from antiphon.ports import Clock, Level
from antiphon.protocol.request import Request

_SCOPE = "antiphon"

DURATIONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Upper bounds in seconds, as the conventions for MCP have them."""

THINK_TIMES = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 14_400, 86_400)
"""Upper bounds in seconds of the times that people take to answer."""


class OpenTelemetry:
    """Traces and counts calls with the application's own providers."""

    reads_results: bool = True

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        durations: bool = False,
        clock: Clock = time.time,
    ) -> None:
        """Use these providers, or the global ones.

        Args:
            tracer_provider: Makes spans.
            meter_provider: Makes instruments.
            durations: Also record how long each round takes, as `mcp.server.operation.duration`; it
                costs as much again as everything else that is counted.
            clock: Seconds since the epoch, as the server has them; for tests.
        """
        self._clock = clock
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._rounds = CountedEvents("method", "outcome")
        self._repeated = CountedEvents("method")
        self._runs = CountedEvents("tool", "outcome")
        self._refused = CountedEvents("reason")
        self._uncertain = CountedEvents("handler")
        self._diverged = CountedEvents("handler")
        self._decided = CountedEvents("outcome")
        self._open = OpenRounds(clock)
        self._levels: Mapping[Level, Levels] = {
            "tasks": Levels("status"),
            "held": Levels("state"),
            "parked": Levels("state"),
        }
        self._instruments(meter)
        self._duration: metrics.Histogram | None = None
        if durations:
            self._duration = meter.create_histogram(
                "mcp.server.operation.duration",
                "s",
                "Time from a request to its response",
                explicit_bucket_boundaries_advisory=DURATIONS,
            )
        self._think = meter.create_histogram(
            "antiphon.think_time",
            "s",
            "Time from a question to the round that answers it",
            explicit_bucket_boundaries_advisory=THINK_TIMES,
        )
        self._again: dict[int, TracedRound] = {}
        """The later rounds that run now, by the identity of their requests."""

        self._kinds: dict[tuple[str, str, str], dict[str, str]] = {}

    def _instruments(self, meter: metrics.Meter) -> None:
        for name, events, description in (
            ("antiphon.rounds", self._rounds, "Rounds, by outcome"),
            ("antiphon.rounds.repeated", self._repeated, "Rounds answered from the ledger"),
            ("antiphon.task.runs", self._runs, "Runs of tasks, by what became of the task"),
            ("antiphon.tokens.refused", self._refused, "Refused tokens, by reason"),
            ("antiphon.uncertain", self._uncertain, "Effects of unknown end that were met"),
            ("antiphon.diverged", self._diverged, "Re-runs that took another path"),
            ("antiphon.decisions", self._decided, "Decisions that held calls went on with"),
        ):
            meter.create_observable_counter(name, [events.observe], description=description)
        for name, observe, description in (
            ("antiphon.calls.waiting", self._open.waiting, "Tokens given out, not redeemed yet"),
            ("antiphon.calls.abandoned", self._open.abandoned, "Tokens that expired unredeemed"),
        ):
            meter.create_observable_up_down_counter(name, [observe], description=description)
        for name, level, description in (
            ("antiphon.tasks", self._levels["tasks"], "Tasks in the store, by status"),
            ("antiphon.calls.held", self._levels["held"], "Held calls in the store, by state"),
            ("antiphon.handlers.parked", self._levels["parked"], "Handlers kept in memory"),
        ):
            meter.create_observable_gauge(name, [level.observe], description=description)

    def round(self, round: Request) -> AbstractContextManager[None]:
        """Trace one round; its outcome is read from the request when it has ended."""
        traced = TracedRound(self._tracer, round, self._ended)
        if round.token is not None:
            self._again[id(round)] = traced
        return traced

    def run(self, run: Request) -> AbstractContextManager[None]:
        """Trace one run of a task."""
        return TracedRun(self._tracer, run, self._run_ended)

    def here(self) -> str:
        """Return the `traceparent` of the current span, for the token of the next round."""
        here = trace.get_current_span().get_span_context()
        return written(here) if here.is_valid else ""

    def resumed(self, round: Request, issued: float, expires: float) -> None:
        """Go on with the call of a token: in its trace, after the time that an answer took."""
        self._again[id(round)].resume(expires, max(0.0, self._clock() - issued))

    def waits(self, expires: float) -> None:
        """Count a token that was given out."""
        self._open.wait(expires)

    def refused(self, reason: str) -> None:
        """Count a refused token."""
        self._refused.counts[(reason,)] += 1

    def uncertain(self, handler: str) -> None:
        """Count an effect of unknown end that an execution of this handler has met."""
        self._uncertain.counts[(handler,)] += 1

    def diverged(self, handler: str) -> None:
        """Count a re-run of this handler that took another path."""
        self._diverged.counts[(handler,)] += 1

    def decided(self, outcome: str) -> None:
        """Count a decision that a held call has gone on with."""
        self._decided.counts[(outcome,)] += 1

    def level(self, name: Level, known: Mapping[str, int]) -> None:
        """Take how many there are now, by state."""
        self._levels[name].set(known)

    def _ended(self, request: Request, seconds: float, failure: str, expires: float) -> None:
        outcome = request.outcome
        if request.token is not None:
            thought = self._again.pop(id(request)).thought
            if outcome and thought is not None and not request.repeated:
                self._think.record(thought)
        self._rounds.counts[request.method, outcome or "error"] += 1
        if request.repeated:
            self._repeated.counts[(request.method,)] += 1
        elif outcome and expires:
            self._open.end(expires)
        if self._duration is None:
            return
        target = request.target if outcome and request.method == "tools/call" else ""
        kind = (request.method, target, failure)
        attributes = self._kinds.get(kind)
        if attributes is None:
            attributes = self._kinds[kind] = _attributes(*kind)
        self._duration.record(seconds, attributes)

    def _run_ended(self, request: Request) -> None:
        self._runs.counts[request.target, request.outcome or "error"] += 1


def _attributes(method: str, tool: str, failure: str) -> dict[str, str]:
    named = {"mcp.method.name": method, "gen_ai.tool.name": tool, "error.type": failure}
    return {name: value for name, value in named.items() if value}
