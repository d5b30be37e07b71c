"""A server whose spans are written to a file for each process; its metrics are the global ones."""

import os
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from pydantic import BaseModel

from antiphon import Context, Server
from antiphon.telemetry import OpenTelemetry


class Name(BaseModel):
    name: str


def spans_to_file() -> TracerProvider:
    """Write the spans of this process below the folder that the test names, one on a line."""
    provider = TracerProvider()
    out = (Path(os.environ["SPANS"]) / f"{os.getpid()}.jsonl").open("a", encoding="utf-8")
    exporter = ConsoleSpanExporter(
        out=out, formatter=lambda span: span.to_json(indent=None) + os.linesep
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


if "SPANS" in os.environ:
    server = Server(
        "traced", task_runs="workers", telemetry=OpenTelemetry(spans_to_file(), durations=True)
    )

    @server.tool
    async def build(ctx: Context, size: int = 1) -> str:
        """Ask once, then go on as a task."""
        first = await ctx.elicit("First?", Name)
        await ctx.detach("building")
        return f"built {first.name} {size}"
