"""Signing in to servers from the command line."""
