"""OpenTelemetry: spans of calls, counts, and `/metrics` for Prometheus."""

from antiphon.telemetry.rounds import OpenTelemetry as OpenTelemetry
