"""Signing in to a server with a browser, and what a login leaves kept."""
