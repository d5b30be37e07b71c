"""The earlier era (2024-11-05 to 2025-11-25), served by the official SDK.

`gateway` is what the transports use; it loads the rest, and with it the SDK, in the background.
Modules that import `mcp` are `sessions`, `handlers`, `back_channel`, `event_store` and `stdio`.
"""
