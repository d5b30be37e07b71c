"""Rounds on OpenTelemetry: a span each, every later round linked to the first, and three counters.

`Server(telemetry=OpenTelemetry())` turns it on. Answers, tokens and arguments never enter a span.
The rounds of one call are separate requests, so their spans are joined by links: each later round
links to round one, whose trace context travels in the token (TRACE-04).
"""

from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry import metrics, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from antiphon.core.request import Request

_SCOPE = "antiphon"
_propagator = TraceContextTextMapPropagator()


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
        self._rounds = meter.create_counter("antiphon.rounds", description="Rounds, by outcome")
        self._refused = meter.create_counter(
            "antiphon.tokens.refused", description="Refused tokens, by reason"
        )
        self._uncertain = meter.create_counter(
            "antiphon.uncertain", description="Effects of unknown end that were met, by handler"
        )

    @contextmanager
    def round(self, round: Request) -> Generator[None]:
        """Trace one round; its outcome is read from the request when it has ended."""
        parent = _propagator.extract({"traceparent": round.trace}) if round.trace else None
        with self._tracer.start_as_current_span(
            round.method,
            context=parent,
            kind=trace.SpanKind.SERVER,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                # Not its text, which may come from the handler.
                span.set_status(trace.StatusCode.ERROR, type(error).__name__)
                raise
            finally:
                outcome = round.outcome or "error"
                span.set_attribute("mcp.method.name", round.method)
                span.set_attribute("antiphon.era", round.era)
                span.set_attribute("antiphon.outcome", outcome)
                if round.outcome and round.method != "resources/read":
                    # Only names that exist: what clients call is of unbounded variety.
                    span.update_name(f"{round.method} {round.target}")
                if round.call:
                    span.set_attribute("antiphon.call", round.call)
                    span.set_attribute("antiphon.round", round.number)
                _link(span, round.first_trace)
                self._rounds.add(1, {"method": round.method, "outcome": outcome})

    def here(self) -> str:
        """Return the `traceparent` of the current span, for the token of the next round."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier)
        return carrier.get("traceparent", "")

    def refused(self, reason: str) -> None:
        """Count a refused token."""
        self._refused.add(1, {"reason": reason})

    def uncertain(self, handler: str) -> None:
        """Count an effect of unknown end that an execution of this handler has met."""
        self._uncertain.add(1, {"handler": handler})


def _link(span: trace.Span, first: str) -> None:
    if not first:
        return
    context = trace.get_current_span(_propagator.extract({"traceparent": first}))
    span.add_link(context.get_span_context(), {"antiphon.link": "first round"})
