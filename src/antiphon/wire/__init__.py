"""Bytes and mappings to values and back, for the modern wire. Decides nothing, runs nothing."""
