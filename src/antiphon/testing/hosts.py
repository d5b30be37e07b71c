"""What real hosts and clients can be asked, by name, each with the day on which it was observed.

A host changes; these are observations, not promises. `how` says what an entry is worth: `driven` by
the script behind `docs/hosts.md`, `tried` by hand, or `reported` in public and not tried by us.

    Rounds(make_server, **hosts.CLAUDE_CODE.client)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal

from antiphon.protocol.capabilities import TASKS
from antiphon.protocol.request import Era

_DAY = date(2026, 11, 16)
_FORMS: Mapping[str, Any] = {"elicitation": {"form": {}}}
_PAGES: Mapping[str, Any] = {"elicitation": {"form": {}, "url": {}}}
_TASKS: Mapping[str, Any] = {"extensions": {TASKS: {}}}
_COMPLETIONS: Mapping[str, Any] = {"sampling": {}}


@dataclass(frozen=True)
class ObservedHost:
    """A host or a client library, as it was seen on one day."""

    name: str
    version: str
    era: Era
    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])
    how: Literal["driven", "tried", "reported"] = "tried"
    seen: date = _DAY

    @property
    def client(self) -> dict[str, Any]:
        """What `Rounds(...)` takes to be this client."""
        return {"capabilities": self.capabilities, "era": self.era}


CLAUDE_CODE = ObservedHost("Claude Code", "2.1.319", "modern", {**_FORMS, **_TASKS}, "reported")
CLAUDE_DESKTOP = ObservedHost("Claude Desktop and claude.ai", "", "modern", {}, "reported")
CHATGPT = ObservedHost("ChatGPT", "", "modern", {}, "reported")
VS_CODE = ObservedHost("VS Code", "", "legacy", _PAGES, "reported")
CURSOR = ObservedHost("Cursor", "", "legacy", _FORMS, "reported")

INSPECTOR = ObservedHost(
    "Inspector, web UI", "2.12.0", "modern", {**_PAGES, **_COMPLETIONS, **_TASKS}
)
INSPECTOR_CLI = ObservedHost("Inspector, --cli", "2.12.0", "modern", _TASKS)
MCPDO = ObservedHost("Inspector, mcpdo", "2.12.0", "modern", {**_PAGES, **_TASKS})
FASTMCP = ObservedHost("FastMCP client", "4.1.2", "modern", _FORMS, "driven")
PYTHON_SDK = ObservedHost("official Python client", "2.3.0", "modern", _FORMS, "driven")
PYTHON_SDK_1 = ObservedHost("official Python client, line 1", "1.30.0", "legacy", _FORMS, "driven")
TYPESCRIPT_SDK = ObservedHost("TypeScript client", "2.4.0", "modern", _FORMS, "driven")
TYPESCRIPT_SDK_1 = ObservedHost("TypeScript SDK, line 1", "1.32.2", "legacy", _FORMS, "driven")
LANGCHAIN = ObservedHost("LangChain langchain.mcp", "1.4.7", "modern", _FORMS, "driven")
LANGCHAIN_ADAPTERS = ObservedHost("langchain-mcp-adapters", "0.3.2", "legacy", _FORMS)
PYDANTIC_AI = ObservedHost(
    "pydantic-ai-slim", "2.66.0", "modern", {**_PAGES, **_COMPLETIONS, "roots": {}}
)
OPENAI_AGENTS = ObservedHost("openai-agents", "0.24.0", "modern")
GOOGLE_ADK = ObservedHost("google-adk", "2.13.0", "legacy", _FORMS)
MCP_USE = ObservedHost("mcp-use", "1.7.1", "legacy", _FORMS)
SMOLAGENTS = ObservedHost("smolagents", "1.26.0", "legacy")

HOSTS: Mapping[str, ObservedHost] = {
    "claude-code": CLAUDE_CODE,
    "claude-desktop": CLAUDE_DESKTOP,
    "chatgpt": CHATGPT,
    "vs-code": VS_CODE,
    "cursor": CURSOR,
    "inspector": INSPECTOR,
    "inspector-cli": INSPECTOR_CLI,
    "mcpdo": MCPDO,
    "fastmcp": FASTMCP,
    "python-sdk": PYTHON_SDK,
    "python-sdk-1": PYTHON_SDK_1,
    "typescript-sdk": TYPESCRIPT_SDK,
    "typescript-sdk-1": TYPESCRIPT_SDK_1,
    "langchain": LANGCHAIN,
    "langchain-adapters": LANGCHAIN_ADAPTERS,
    "pydantic-ai": PYDANTIC_AI,
    "openai-agents": OPENAI_AGENTS,
    "google-adk": GOOGLE_ADK,
    "mcp-use": MCP_USE,
    "smolagents": SMOLAGENTS,
}
"""All of them by name."""
