"""Mutation testing of the engine's core: every small change of its code must fail some test."""
