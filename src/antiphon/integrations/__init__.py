"""Antiphon beside the software of others: hosts, sign-in, telemetry and audit trails.

`mcp_sdk` puts our tools and prompts into an `MCPServer` of the official SDK, `fastmcp` into a
FastMCP server: transport, authentication and middleware are theirs; rounds, effects, approvals and
tasks are ours. `oauth` verifies access tokens. `import antiphon` loads none of this.
"""
