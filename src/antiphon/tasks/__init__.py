"""Calls that went on in the background."""
