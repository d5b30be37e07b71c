"""One trace for a call: a span around what a process does for it, and the trace in a saved call."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from antiphon.client.saved import SavedCall

_tracer = trace.get_tracer("antiphon.client")
_written = TraceContextTextMapPropagator()
_KEY = "traceparent"


@contextmanager
def traced_call(saved: SavedCall) -> Generator[SavedCall]:
    """Enclose what is done for a call now; the call is given back with the trace that it is in.

    A call that was saved goes on in its own trace, unless the caller has one of their own: then the
    span links to the trace in which the call began.
    """
    within, links = None, ()
    if saved.trace:
        began = _written.extract({_KEY: saved.trace}, Context())
        if trace.get_current_span().get_span_context().is_valid:
            links = (trace.Link(trace.get_current_span(began).get_span_context()),)
        else:
            within = began
    name, attributes = _described(saved)
    with _tracer.start_as_current_span(name, within, attributes=attributes, links=links):
        here: dict[str, str] = {}
        if not saved.trace:
            _written.inject(here)
        yield replace(saved, trace=here[_KEY]) if here else saved


def _described(saved: SavedCall) -> tuple[str, Mapping[str, str]]:
    """Name the span as the conventions for tools do; a resource's URI is of unbounded variety."""
    method, name = saved.call.method, str(saved.call.params.get("name", ""))
    if method == "tools/call":
        named = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        return f"execute_tool {name}", named
    return f"{method} {name}".rstrip(), {"gen_ai.prompt.name": name} if name else {}
