"""docs/observing.md and the dashboard in step with the metrics that a server has."""

import json
import re
from pathlib import Path

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry, generate_latest

from antiphon.protocol.request import Principal, Request
from antiphon.telemetry import OpenTelemetry
from docs_src import observing

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "observing.md").read_text()
DASHBOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text())


def counted_once(meters: MeterProvider) -> None:
    """Let everything happen once that is counted."""
    telemetry = OpenTelemetry(TracerProvider(), meters, durations=True)
    request = Request(
        method="tools/call", target="x", token="t", capabilities={}, principal=Principal()
    )
    for repeated in (False, True):
        with telemetry.round(request):
            telemetry.resumed(request, 0.0, 0.0)
            request.outcome, request.repeated = "complete", repeated
    with telemetry.run(request):
        telemetry.waits(0.0)
    telemetry.refused("expired")
    telemetry.uncertain("tool:x")
    telemetry.diverged("tool:x")
    telemetry.decided("approved")
    telemetry.level("tasks", {"working": 1})
    telemetry.level("held", {"waiting": 1})
    telemetry.level("parked", {"asleep": 1})


def test_the_page_names_every_metric_with_its_attributes() -> None:
    reader = InMemoryMetricReader()
    counted_once(MeterProvider([reader]))
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: {name for point in metric.data.data_points for name in point.attributes or {}}
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    rows = re.findall(r"^\| `([a-z._]+)` \| .* \| (.*) ?\|$", PAGE.split("## Metrics")[1], re.M)
    told = {name: set(re.findall(r"`([a-z._]+)`", by)) for name, by in rows}
    told["mcp.server.operation.duration"].discard("error.type")  # of those that failed
    assert told == found


def test_the_dashboard_asks_for_metrics_that_prometheus_is_given() -> None:
    registry = CollectorRegistry()
    counted_once(MeterProvider([PrometheusMetricReader(registry=registry)]))
    given = set(re.findall(r"^([a-z_]+)(?:\{| )", generate_latest(registry).decode(), re.M))
    exprs = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    asked = {name for expr in exprs for name in re.findall(r"\b((?:antiphon|mcp)_[a-z_]+)\{", expr)}
    assert asked - given == set()
    metrics = {name for name in given if name.startswith(("antiphon_", "mcp_"))}
    shown = {name.removesuffix("_bucket") for name in asked}
    parts = ("_bucket", "_sum", "_count")
    hidden = {
        name for name in metrics if not name.startswith(tuple(shown)) and not name.endswith(parts)
    }
    assert hidden == set(), "a metric that no panel shows"


def test_the_server_of_the_page_is_traced() -> None:
    assert isinstance(observing.server.parts.environment.telemetry, OpenTelemetry)
