"""MCP 2026-07-28 as bytes: requests checked, results and messages written."""
