"""Writes the audit of a server; the records themselves are in `protocol/audit.py`."""
