"""Runs one round of one call."""
