"""Tokens: claims and journal ⇄ sealed text. Knows no wire, no store and no handler; never logs."""
