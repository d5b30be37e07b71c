"""`/metrics` for Prometheus, on a port of its own: what clients reach never shows it.

Needs `antiphon[metrics]`. The metrics are those of the global meter provider, which
`OpenTelemetry()` uses where it is given none. One process answers for itself.
"""

from opentelemetry import metrics

from antiphon.errors import ConfigError

_MISSING = "metrics for Prometheus need {}: install antiphon[metrics]"


def serve_metrics(host: str, port: int) -> int:
    """Serve `/metrics` in a thread for as long as the process lives; returns the port.

    Args:
        host: Where to listen: loopback, or a network that only Prometheus reaches.
        port: The port; 0 takes a free one.

    Raises:
        ConfigError: The exporter is not installed, or the address cannot be bound.
    """
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
        from prometheus_client import start_http_server
    except ImportError as error:
        raise ConfigError(_MISSING.format(error.name)) from error
    try:
        listening, _ = start_http_server(port, host)
    except OSError as error:
        raise ConfigError(
            f"{host}:{port} cannot be bound for metrics ({error.strerror}). Choose another address."
        ) from error
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    return int(listening.server_address[1])
