"""Hostile inputs in great number, over HTTP and stdio: `python -m tests.fuzz --inputs 1000000`."""
