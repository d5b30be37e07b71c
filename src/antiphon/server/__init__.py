"""Runs handlers against journals. Knows no transport, no store class and no client library."""
