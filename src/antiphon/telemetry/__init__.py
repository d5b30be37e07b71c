"""Traces and counts of rounds. The only room that knows a tracing library."""
