"""Rounds on OpenTelemetry: a span each, every later round linked to the first, and three counters.

`Server(telemetry=OpenTelemetry())` turns it on. Answers, tokens and arguments never enter a span.
The rounds of one call are separate requests, so their spans are joined by links: each later round
links to round one, whose trace context travels in the token (TRACE-04).

A span costs what the SDK takes to make one: its attributes are set at once when the round ends, and
not at all where it is not sampled. Counters are read when metrics are collected, so that counting
is one addition.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from opentelemetry import context, metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Observation

from antiphon.core.request import Request

_SCOPE = "antiphon"
_NO_CONTEXT = Context()


class OpenTelemetry:
    """Traces and counts rounds with the application's own providers."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        """Use these providers, or the global ones."""
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._rounds = CountedEvents("method", "outcome")
        self._refused = CountedEvents("reason")
        self._uncertain = CountedEvents("handler")
        for name, events, description in (
            ("antiphon.rounds", self._rounds, "Rounds, by outcome"),
            ("antiphon.tokens.refused", self._refused, "Refused tokens, by reason"),
            (
                "antiphon.uncertain",
                self._uncertain,
                "Effects of unknown end that were met, by handler",
            ),
        ):
            meter.create_observable_counter(name, [events.observe], description=description)

    def round(self, round: Request) -> "TracedRound":
        """Trace one round; its outcome is read from the request when it has ended."""
        return TracedRound(self._tracer, self._rounds, round)

    def here(self) -> str:
        """Return the `traceparent` of the current span, for the token of the next round."""
        here = trace.get_current_span().get_span_context()
        if not here.is_valid:
            return ""
        return f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}"

    def refused(self, reason: str) -> None:
        """Count a refused token."""
        self._refused.counts[(reason,)] += 1

    def uncertain(self, handler: str) -> None:
        """Count an effect of unknown end that an execution of this handler has met."""
        self._uncertain.counts[(handler,)] += 1


class CountedEvents:
    """How often each kind of event has happened."""

    def __init__(self, *names: str) -> None:
        """Tell events apart by these attributes."""
        self._names = names
        self.counts: Counter[tuple[str, ...]] = Counter()

    def observe(self, _: CallbackOptions) -> Iterator[Observation]:
        """Return the counts, for whoever collects metrics."""
        for values, count in tuple(self.counts.items()):
            attributes: Mapping[str, str] = dict(zip(self._names, values, strict=True))
            yield Observation(count, attributes)


class TracedRound:
    """The span of one round, current while the round runs."""

    __slots__ = ("_counted", "_request", "_span", "_token", "_tracer")

    def __init__(self, tracer: trace.Tracer, counted: CountedEvents, request: Request) -> None:
        """Trace a request; the span begins on entering."""
        self._tracer = tracer
        self._counted = counted
        self._request = request

    def __enter__(self) -> None:
        """Begin the span."""
        request = self._request
        # Said explicitly, because the SDK would look for it once for each of its parts.
        around = parent = context.get_current()
        if request.trace:
            remote = trace.NonRecordingSpan(_read(request.trace))
            parent = trace.set_span_in_context(remote, _NO_CONTEXT)
        self._span = self._tracer.start_span(
            request.method,
            parent,
            trace.SpanKind.SERVER,
            record_exception=False,
            set_status_on_exception=False,
        )
        self._token = context.attach(trace.set_span_in_context(self._span, around))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the span with what is known of the round by now."""
        span, request = self._span, self._request
        outcome = request.outcome or "error"
        self._counted.counts[request.method, outcome] += 1
        context.detach(self._token)
        if span.is_recording():
            if isinstance(error, Exception):
                # Not its text, which may come from the handler.
                span.set_status(trace.StatusCode.ERROR, type(error).__name__)
            if request.outcome and request.method != "resources/read":
                # Only names that exist: what clients call is of unbounded variety.
                span.update_name(f"{request.method} {request.target}")
            span.set_attributes(_attributes(request, outcome))
            if request.first_trace:
                span.add_link(_read(request.first_trace))
        span.end()


def _attributes(request: Request, outcome: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "mcp.method.name": request.method,
        "antiphon.era": request.era,
        "antiphon.outcome": outcome,
    }
    if request.call:
        attributes["antiphon.call"] = request.call
        attributes["antiphon.round"] = request.number
    return attributes


def _read(traceparent: str) -> trace.SpanContext:
    """Read a trace context that was checked when it came, or was made by `here`."""
    return trace.SpanContext(
        int(traceparent[3:35], 16),
        int(traceparent[36:52], 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(traceparent[53:55], 16)),
    )
