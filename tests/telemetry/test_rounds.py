"""Traces stitched across rounds: a span each, every later round linked to the first."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from pydantic import BaseModel

from antiphon import Client, Context, RemoteError, Seal, Server, ToolError
from antiphon.client import http, prepared_call
from antiphon.ports import Effect
from antiphon.telemetry import OpenTelemetry
from antiphon.testing import KEY, WITH_TASKS, FakeClock, Rounds
from tests.client.test_task_news import counted
from tests.tasks.task_client import Peer

UNSET, ERROR = StatusCode.UNSET, StatusCode.ERROR


class Name(BaseModel):
    name: str


class Observed:
    """Spans and counts of the servers of one test."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.spans = InMemorySpanExporter()
        traces = TracerProvider()
        traces.add_span_processor(SimpleSpanProcessor(self.spans))
        self.reader = InMemoryMetricReader()
        self.telemetry = OpenTelemetry(traces, MeterProvider([self.reader]), clock=clock)

    def make_server(self, **kit: Any) -> Server:
        server = Server("traced", telemetry=self.telemetry, **kit)

        @server.tool
        async def ask_twice(ctx: Context) -> str:
            first = await ctx.elicit("First?", Name)
            second = await ctx.elicit("Second?", Name)
            return f"{first.name} {second.name}"

        return server

    def counts(self, name: str) -> dict[str, int]:
        data = self.reader.get_metrics_data()
        found: dict[str, int] = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        for point in metric.data.data_points:
                            attributes = point.attributes or {}
                            key = next(
                                attributes[name]
                                for name in ("outcome", "reason", "handler")
                                if name in attributes
                            )
                            found[str(key)] = int(getattr(point, "value", 0))
        return found


@pytest.mark.requirement("TRACE-04")
async def test_every_later_round_links_to_the_first() -> None:
    seen = Observed()
    async with Rounds(seen.make_server) as world:
        await world.call(
            "ask_twice", {}, answers={"name": {"name": "a"}, "name-2": {"name": "SENTINEL"}}
        )
    first, second, third = seen.spans.get_finished_spans()
    assert not first.links
    assert first.context is not None
    assert [span.links[0].context.span_id for span in (second, third)] == [
        first.context.span_id,
        first.context.span_id,
    ]
    assert [dict(s.attributes or {})["antiphon.outcome"] for s in (first, second, third)] == [
        "input_required",
        "input_required",
        "complete",
    ]
    assert dict(third.attributes or {})["antiphon.round"] == 3
    assert "SENTINEL" not in repr([span.to_json() for span in (first, second, third)])


async def test_rounds_are_counted_by_outcome_and_refusals_by_reason() -> None:
    seen = Observed()
    async with Rounds(seen.make_server) as world:
        step = await world.begin("ask_twice", {})
        refused = await world.tamper(step, {"name": {"name": "a"}})
    assert refused.code == -32602
    assert seen.counts("antiphon.rounds") == {"input_required": 1, "error": 1}
    assert sum(seen.counts("antiphon.tokens.refused").values()) == 1


def pay() -> str:
    raise RuntimeError("the process dies here")


@pytest.mark.parametrize("task", [None, "allowed"])
async def test_effects_of_unknown_end_are_counted_in_rounds_and_tasks(task: Any) -> None:
    seen = Observed()
    server = Server("shop", telemetry=seen.telemetry, seal=Seal(keys=[KEY]))
    store: Any = server._services.store
    real = store.begin

    async def begin(effect: Effect, **how: Any) -> Any:
        """Another process began the effect before us and died in it."""
        await real(effect, **{**how, "lease": 0.0, "nonce": b"other", "under": None})
        return await real(effect, **how)

    store.begin = begin

    @server.tool(task=task)
    async def buy(ctx: Context) -> str:
        return await ctx.once("pay", pay)

    async with server.running():
        peer = Peer(server)
        if task is None:
            assert (await peer.call("buy"))["isError"]
        else:
            id = await peer.begin("buy")
            await peer.until(id, lambda task: "'pay'" in task.get("statusMessage", ""))
    assert seen.counts("antiphon.uncertain") == {"tool:buy": 1}


async def test_a_failed_round_is_marked_without_the_words_of_its_error() -> None:
    observed = Observed()

    def make(**kit: Any) -> Server:
        server = observed.make_server(**kit)

        @server.prompt
        async def greet(ctx: Context) -> str:
            raise ToolError("sentinel is not at home")

        return server

    async with Rounds(make) as rounds:
        step = await rounds.prompt("greet")
    (span,) = observed.spans.get_finished_spans()
    assert "sentinel" in str(step.error)
    assert not span.status.is_ok
    assert "sentinel" not in span.to_json()


async def test_every_round_of_a_call_that_goes_on_names_its_call() -> None:
    seen = Observed()
    async with Rounds(seen.make_server) as world:
        await world.call("ask_twice", {}, answers={"name": {"name": "a"}, "name-2": {"name": "b"}})
    attributes = [dict(span.attributes or {}) for span in seen.spans.get_finished_spans()]
    assert [one["antiphon.round"] for one in attributes] == [1, 2, 3]
    assert len({str(one["antiphon.call"]) for one in attributes}) == 1
    assert {str(one["gen_ai.operation.name"]) for one in attributes} == {"execute_tool"}


async def test_a_duplicate_and_a_refused_answer_are_no_time_to_think() -> None:
    clock = FakeClock()
    seen = Observed(clock)
    async with Rounds(seen.make_server, clock=clock) as world:
        step = await world.begin("ask_twice", {})
        clock.advance(5)
        answered = await world.answer(step, {"name": {"name": "a"}})
        clock.advance(100)
        await world.replay(answered)
        await world.answer(step, {"name": {"name": "b"}})
    data = seen.reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    (think,) = (one for one in scope.metrics if one.name == "antiphon.think_time")
    (point,) = think.data.data_points
    assert (point.count, point.sum) == (1, 5.0)  # type: ignore[union-attr]


async def test_the_run_of_a_task_that_fails_is_marked() -> None:
    seen = Observed()

    def make(**kit: Any) -> Server:
        server = seen.make_server(**kit)

        @server.tool
        async def move(ctx: Context) -> str:
            await ctx.detach()
            raise ToolError("sentinel is not at home")

        return server

    async with Rounds(make, capabilities=WITH_TASKS) as world:
        assert (await world.call("move")).is_error
    first, run = seen.spans.get_finished_spans()
    assert (first.attributes or {})["antiphon.call"] == (run.attributes or {})["antiphon.call"]
    assert (run.attributes or {})["error.type"] == "tool_error"
    assert not run.status.is_ok
    assert "sentinel" not in run.to_json()


async def test_the_spans_of_a_client_have_no_words_of_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans, traces = InMemorySpanExporter(), TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(spans))
    for module in (http, prepared_call):
        monkeypatch.setattr(module, "_tracer", traces.get_tracer("test"))
    server = Server("shop", seal=Seal(keys=[KEY]))

    @server.prompt
    async def greet(ctx: Context) -> str:
        raise ToolError("sentinel is not at home")

    @server.tool
    async def fail(ctx: Context) -> str:
        raise ToolError("sentinel is not at home")

    async with counted(server) as (url, _), Client(url) as client:
        with pytest.raises(RemoteError, match="sentinel"):
            await client.get_prompt("greet")
        await client.call_tool("fail")
    found = [span for span in spans.get_finished_spans() if "discover" not in span.name]
    assert "sentinel" not in repr([span.to_json() for span in found])
    kinds = [(span.name, dict(span.attributes or {}).get("error.type")) for span in found]
    assert kinds == [
        ("prompts/get greet", "-32603"),
        ("prompts/get greet", "-32603"),
        ("tools/call fail", "tool_error"),
        ("execute_tool fail", "tool_error"),
    ]
    assert not any(span.status.is_ok for span in found)


async def test_a_call_of_a_client_in_the_same_process_is_marked_if_its_tool_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans, traces = InMemorySpanExporter(), TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(spans))
    for module in (http, prepared_call):
        monkeypatch.setattr(module, "_tracer", traces.get_tracer("test"))
    server = Server("shop", seal=Seal(keys=[KEY]))

    @server.tool
    async def sell(ctx: Context, sold: bool) -> str:
        if not sold:
            raise ToolError("sentinel is not at home")
        return "sold"

    async with Client(server) as client:
        await client.call_tool("sell", {"sold": True})
        await client.call_tool("sell", {"sold": False})
        await client.begin("sell", {"sold": False})
    sold, *failed = spans.get_finished_spans()  # one for each call, none for its requests
    assert {span.name for span in (sold, *failed)} == {"execute_tool sell"}
    assert (sold.status.status_code, "error.type" in (sold.attributes or {})) == (UNSET, False)
    assert [span.status.status_code for span in failed] == [ERROR, ERROR]
    assert [(span.attributes or {})["error.type"] for span in failed] == ["tool_error"] * 2
