"""Signing in to a server, with a browser or on another device, and what a login leaves kept."""
