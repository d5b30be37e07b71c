"""The earlier era (2024-11-05 to 2025-11-25), served by the official SDK.

`door` is what the transports are given; it loads the rest, and with it the SDK, when the first
legacy client appears. Modules that name `mcp` are `host`, `feed`, `methods`,
`session`, `channel`, `replay`.
"""
