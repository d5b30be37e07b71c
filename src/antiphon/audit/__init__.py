"""The audit of a server: what is written of its calls, and where. Records are `core/audit.py`."""
