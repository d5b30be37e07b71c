"""Flat forms: from a type to a schema, from an answer to a value."""
