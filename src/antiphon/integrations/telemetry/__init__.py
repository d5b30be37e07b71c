"""OpenTelemetry: spans of calls, counts, and `/metrics` for Prometheus."""
