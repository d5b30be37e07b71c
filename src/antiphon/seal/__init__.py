"""Tokens: claims and journal to sealed text and back. Nothing here logs."""
