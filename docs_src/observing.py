"""A server that traces and counts its calls."""

from antiphon import Server
from antiphon.telemetry import OpenTelemetry

server = Server("shop", telemetry=OpenTelemetry())
