"""Flat forms: schema and value."""
