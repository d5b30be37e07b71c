"""Which client the console pretends to be: an era, and what that client declares.

The rows of programs that were driven or tried stand in docs/hosts.md; those of desktop hosts are as
reported in public and may be out of date. A console's user can choose era and abilities freely.
"""

from typing import Final

import msgspec

from antiphon.protocol.capabilities import Capability
from antiphon.protocol.request import Era

ABILITIES: Final[tuple[tuple[Capability, str], ...]] = (
    ("form", "Forms and approvals"),
    ("url", "Pages to visit"),
    ("sampling", "Completions"),
    ("roots", "Roots"),
    ("tasks", "Tasks"),
)


class ClientProfile(msgspec.Struct, frozen=True):
    """A client as servers see it."""

    name: str
    title: str
    era: Era
    can: tuple[Capability, ...]


_EVERYTHING: tuple[Capability, ...] = ("form", "url", "sampling", "roots", "tasks")

PROFILES: Final[tuple[ClientProfile, ...]] = (
    ClientProfile("everything", "Everything", "modern", _EVERYTHING),
    ClientProfile("nothing", "Nothing (CI, cron)", "modern", ()),
    ClientProfile("claude-code", "Claude Code", "modern", ("form", "roots", "tasks")),
    ClientProfile("claude-desktop", "claude.ai and Claude Desktop", "legacy", ()),
    ClientProfile("chatgpt", "ChatGPT", "modern", ()),
    ClientProfile("vscode", "VS Code", "legacy", ("form", "url", "sampling", "roots")),
    ClientProfile("cursor", "Cursor", "legacy", ("form", "roots")),
    ClientProfile("inspector", "Inspector 2.12", "modern", ("form", "url", "sampling", "tasks")),
    ClientProfile("fastmcp", "FastMCP client 4.1", "modern", ("form",)),
    ClientProfile("pydantic-ai", "pydantic-ai 2.66", "modern", _EVERYTHING[:4]),
    ClientProfile("openai-agents", "openai-agents 0.24", "modern", ()),
    ClientProfile("google-adk", "google-adk 2.13", "legacy", ("form",)),
    ClientProfile("langchain", "langchain-mcp-adapters 0.3", "legacy", ("form",)),
)


def profile_of(name: str) -> ClientProfile | None:
    """Return a known client; None for one whose abilities were chosen by hand."""
    return next((profile for profile in PROFILES if profile.name == name), None)
