"""The spans of one call: each round and each run of its task, named as OpenTelemetry names MCP.

Answers, tokens and arguments never enter a span, nor does the text of an error.
"""

from collections.abc import Callable
from time import perf_counter, time_ns
from types import TracebackType
from typing import Any

from opentelemetry import context, trace
from opentelemetry.context import Context

from antiphon.errors import CallerError
from antiphon.ports.call_end import outcome_of
from antiphon.protocol.request import Request

_NO_CONTEXT = Context()
_NAMES = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}
"""The attribute that names the target; a resource has none, its URI is of unbounded variety."""

_ID_LENGTH = 128
"""Characters of a request's id that are kept; its client chooses how long it is."""

Ended = Callable[[Request, float, str, float], None]
"""Told a request, its seconds, what kind of error it ended with, and when its token expires."""

TOOL_ERROR = "tool_error"
"""The kind of error of a tool that said in its result that it failed."""

OTHER = "_OTHER"
"""The kind of error of a task that has failed, as the conventions call one without a name."""


class TracedRound:
    """The span of one round, current while the round runs."""

    __slots__ = (
        "_began",
        "_ended",
        "_expires",
        "_request",
        "_span",
        "_start",
        "_token",
        "_tracer",
        "thought",
    )

    def __init__(self, tracer: trace.Tracer, request: Request, ended: Ended) -> None:
        """Trace a request; the span begins on entering."""
        self._tracer = tracer
        self._request = request
        self._ended = ended
        self._span: trace.Span | None = None
        self._start: int | None = None
        self._expires = 0.0
        self.thought: float | None = None
        """Seconds from the question to this round, once its token is open."""

    def __enter__(self) -> None:
        """Begin the span; where only the token knows to which trace it belongs, when it is open."""
        request = self._request
        self._began = perf_counter()
        if request.trace or request.token is None:
            self._begin(request.trace)
        else:
            self._start = time_ns()

    def resume(self, expires: float, thought: float) -> None:
        """Go on with what the token says of the call."""
        self._expires, self.thought = expires, thought
        if self._span is None:
            self._begin(self._request.first_trace)

    def _begin(self, parent: str) -> None:
        # Said explicitly, because the SDK would look for it once for each of its parts.
        around = within = context.get_current()
        if parent:
            within = trace.set_span_in_context(trace.NonRecordingSpan(read(parent)), _NO_CONTEXT)
        self._span = span = self._tracer.start_span(
            self._request.method,
            within,
            trace.SpanKind.SERVER,
            start_time=self._start,
            record_exception=False,
            set_status_on_exception=False,
        )
        self._token = context.attach(trace.set_span_in_context(span, around))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the span with what is known of the round by now."""
        request = self._request
        if self._span is None:
            self._begin("")  # its token was refused
        span = self._span
        assert span is not None
        context.detach(self._token)
        failure = _kind_of(error) if error is not None else _failure_in(request)
        if span.is_recording():
            _describe(span, request, error, failure)
        span.end()
        self._ended(request, perf_counter() - self._began, failure, self._expires)


def _describe(span: trace.Span, request: Request, error: BaseException | None, kind: str) -> None:
    attributes: dict[str, Any] = {
        "mcp.method.name": request.method,
        "mcp.protocol.version": request.version,
        "antiphon.outcome": request.outcome or "error",
    }
    if kind:
        attributes["error.type"] = kind
        if isinstance(error, CallerError):
            attributes["rpc.response.status_code"] = kind
        # Not its text, which may come from the handler.
        span.set_status(trace.StatusCode.ERROR)
    name = _NAMES.get(request.method)
    if request.outcome and name is not None:
        # Only names that exist: what clients call is of unbounded variety.
        span.update_name(f"{request.method} {request.target}")
        attributes[name] = request.target
        if request.method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
    if request.id is not None:
        attributes["jsonrpc.request.id"] = str(request.id)[:_ID_LENGTH]
    if request.call:
        attributes["antiphon.call"] = request.call
        attributes["antiphon.round"] = request.number
    span.set_attributes(attributes)
    if request.first_trace:
        span.add_link(read(request.first_trace))


class TracedRun:
    """The span of one run of a task: in the trace of its call's first round, and linked to it."""

    __slots__ = ("_current", "_ended", "_request", "_span", "_tracer")

    def __init__(
        self, tracer: trace.Tracer, request: Request, ended: Callable[[Request], None]
    ) -> None:
        """Trace a run; the span begins on entering."""
        self._tracer = tracer
        self._request = request
        self._ended = ended

    def __enter__(self) -> None:
        """Begin the span."""
        request, within, links = self._request, None, ()
        if request.first_trace:
            first = read(request.first_trace)
            within = trace.set_span_in_context(trace.NonRecordingSpan(first), _NO_CONTEXT)
            links = (trace.Link(first),)
        self._span = self._tracer.start_span(
            f"execute_tool {request.target}",
            within,
            trace.SpanKind.INTERNAL,
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": request.target,
                "antiphon.call": request.call,
                "antiphon.run": request.number,
            },
            links,
        )
        self._current = trace.use_span(
            self._span, record_exception=False, set_status_on_exception=False
        )
        self._current.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the span with what became of the task."""
        self._current.__exit__(None, None, None)
        span, request = self._span, self._request
        span.set_attribute("antiphon.outcome", request.outcome or "error")
        failure = _kind_of(error) if error is not None else _failure_in(request)
        if failure:
            span.set_attribute("error.type", failure)
            span.set_status(trace.StatusCode.ERROR)
        span.end()
        self._ended(request)


def _failure_in(request: Request) -> str:
    """Return the kind of error that a result tells of; nothing where it tells of none."""
    if request.outcome == "failed":
        return OTHER
    return TOOL_ERROR if request.result and outcome_of(request.result) == "error" else ""


def _kind_of(error: BaseException) -> str:
    """Return the kind of an error, of which there are few: the code that the client is told."""
    return str(error.code) if isinstance(error, CallerError) else type(error).__name__


def read(traceparent: str) -> trace.SpanContext:
    """Read a trace context that was checked when it came, or was made by `written`."""
    return trace.SpanContext(
        int(traceparent[3:35], 16),
        int(traceparent[36:52], 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(traceparent[53:55], 16)),
    )


def written(here: trace.SpanContext) -> str:
    """Return a trace context as it travels."""
    return f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}"
