"""Antiphon under the official suite: the fixtures it is run against, and the runner that judges."""
