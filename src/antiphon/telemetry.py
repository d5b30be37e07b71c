"""OpenTelemetry: spans and counts of calls."""

from antiphon.integrations.telemetry.rounds import OpenTelemetry as OpenTelemetry
