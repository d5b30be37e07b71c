"""What is counted of calls: the time answers take, what nobody comes back for, duplicates, paths
that diverge, decisions, and what a server keeps."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

from antiphon import Console, Context, Server
from antiphon.telemetry import OpenTelemetry
from antiphon.testing import FakeClock, Person, Rounds, hosts


class Name(BaseModel):
    name: str


class Process:
    """One server process: its telemetry, and what a collector reads of it."""

    def __init__(self, clock: FakeClock, *, console: bool = False, question: str = "Who?") -> None:
        self.spans = InMemorySpanExporter()
        traces = TracerProvider()
        traces.add_span_processor(SimpleSpanProcessor(self.spans))
        self._reader = InMemoryMetricReader()
        meters = MeterProvider([self._reader])
        self._telemetry = OpenTelemetry(traces, meters, durations=True, clock=clock)
        self._console = Console("http://127.0.0.1:8401/console") if console else None
        self.question = question

    def make(self, **kit: Any) -> Server:
        server = Server("counted", telemetry=self._telemetry, console=self._console, **kit)

        @server.tool
        async def greet(ctx: Context) -> str:
            return f"hello {(await ctx.elicit(self.question, Name, key='name')).name}"

        @server.tool(park=60)
        async def parked(ctx: Context) -> str:
            return (await ctx.elicit("Who?", Name, key="name")).name

        if self._console is not None:

            @server.tool(holds=True)
            async def refund(ctx: Context) -> str:
                return (await ctx.approve("Refund?", by="finance", grace=0.1)).outcome

        return server

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def counts(self, name: str) -> Mapping[tuple[Any, ...], int]:
        return {tuple((p.attributes or {}).values()): p.value for p in self.points(name)}

    def total(self, name: str) -> int:
        return sum(point.value for point in self.points(name))


ANSWER = {"name": {"name": "Ada"}}


async def test_the_time_that_an_answer_took_is_recorded_once() -> None:
    clock = FakeClock()
    process = Process(clock)
    async with Rounds(process.make, clock=clock) as world:
        step = await world.begin("greet")
        clock.advance(42)
        await world.answer(step, ANSWER)
    (point,) = process.points("antiphon.think_time")
    assert (point.count, point.sum) == (1, 42)


async def test_calls_that_nobody_comes_back_for_are_counted_over_all_processes() -> None:
    clock = FakeClock()
    first, second = Process(clock), Process(clock)
    async with Rounds(first.make, clock=clock) as world:
        answered = await world.begin("greet")
        await world.begin("greet")  # nobody answers
        await world.deploy(second.make)
        await world.answer(answered, ANSWER)

        def over_all(name: str) -> int:
            return first.total(name) + second.total(name)

        assert over_all("antiphon.calls.waiting") == 1
        assert over_all("antiphon.calls.abandoned") == 0
        clock.advance(7 * 24 * 3_600)
        assert over_all("antiphon.calls.waiting") == 0
        assert over_all("antiphon.calls.abandoned") == 1


async def test_a_round_that_is_sent_again_is_a_duplicate() -> None:
    clock = FakeClock()
    process = Process(clock)
    async with Rounds(process.make, clock=clock) as world:
        done = await world.answer(await world.begin("greet"), ANSWER)
        again = await world.replay(done)
    assert again.text == done.text
    assert process.counts("antiphon.rounds.repeated") == {("tools/call",): 1}


async def test_a_re_run_that_takes_another_path_is_counted_by_handler() -> None:
    clock = FakeClock()
    process = Process(clock)
    async with Rounds(process.make, clock=clock) as world:
        step = await world.begin("greet")
        process.question = "Whoever?"
        assert (await world.answer(step, ANSWER)).is_error
    assert process.counts("antiphon.diverged") == {("tool:greet",): 1}
    (failed,) = (one for one in process.spans.get_finished_spans() if one.links)
    assert dict(failed.attributes or {})["error.type"] == "tool_error"
    kinds = process.points("mcp.server.operation.duration")
    assert [dict(point.attributes) for point in kinds if "error.type" in point.attributes] == [
        {
            "mcp.method.name": "tools/call",
            "gen_ai.tool.name": "greet",
            "error.type": "tool_error",
        }
    ]


async def test_rounds_of_a_client_without_a_trace_are_in_the_trace_of_the_first() -> None:
    clock = FakeClock()
    process = Process(clock)
    async with Rounds(process.make, clock=clock) as world:
        await world.answer(await world.begin("greet"), ANSWER)
    first, second = process.spans.get_finished_spans()
    assert first.context is not None
    assert second.context is not None
    assert second.parent is not None
    assert second.context.trace_id == first.context.trace_id
    assert second.parent.span_id == first.context.span_id


async def look(world: Rounds) -> None:
    """Look at what the kept server keeps, as it does by itself every few seconds."""
    async with AsyncExitStack() as stack:
        levels = (await world.serve(stack)).parts.lifetime.levels
    assert levels is not None
    await levels.look()


async def test_tasks_and_held_calls_are_shown_by_state() -> None:
    clock = FakeClock()
    process = Process(clock, console=True)
    client = hosts.CLAUDE_CODE.client
    async with Rounds(process.make, clock=clock, fresh=False, **client) as world:
        step = await world.begin("refund")
        await look(world)
        assert process.counts("antiphon.calls.held") == {("waiting",): 1}
        assert process.counts("antiphon.tasks") == {("working",): 1}
        anna = Person("https://id.example.com", "anna", "Anna", roles=("finance",))
        await world.decide("approve", as_=anna)
        assert (await world.finish(step)).text == "approved"
        assert process.counts("antiphon.decisions") == {("approved",): 1}
        assert process.counts("antiphon.task.runs") == {("refund", "completed"): 1}
        await look(world)
        assert process.counts("antiphon.calls.held") == {("waiting",): 0}
        assert process.counts("antiphon.tasks") == {("working",): 0, ("completed",): 1}


async def test_parked_handlers_are_counted_while_they_wait() -> None:
    clock = FakeClock()
    process = Process(clock)
    async with Rounds(process.make, clock=clock, fresh=False) as world:
        step = await world.begin("parked")
        await look(world)
        assert process.counts("antiphon.handlers.parked") == {("asleep",): 1}
        await world.answer(step, ANSWER)
        await look(world)
        assert process.counts("antiphon.handlers.parked") == {("asleep",): 0}
