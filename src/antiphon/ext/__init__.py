"""Antiphon's tools and prompts inside the servers of other frameworks.

`antiphon.ext.mcp` is for `MCPServer` of the official SDK, `antiphon.ext.fastmcp` for FastMCP. The
transport, the authentication and the middleware are theirs; the rounds, the effects, the approvals
and the tasks are ours. Nothing of it is imported by `import antiphon`.
"""
