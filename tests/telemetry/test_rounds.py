"""Traces stitched across rounds: a span each, every later round linked to the first."""

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

from antiphon import Context, Seal, Server, ToolError
from antiphon.ports import Effect
from antiphon.telemetry import OpenTelemetry
from antiphon.testing import KEY, Rounds
from tests.tasks.task_client import Peer


class Name(BaseModel):
    name: str


class Observed:
    """Spans and counts of the servers of one test."""

    def __init__(self) -> None:
        self.spans = InMemorySpanExporter()
        traces = TracerProvider()
        traces.add_span_processor(SimpleSpanProcessor(self.spans))
        self.reader = InMemoryMetricReader()
        self.telemetry = OpenTelemetry(traces, MeterProvider([self.reader]))

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
