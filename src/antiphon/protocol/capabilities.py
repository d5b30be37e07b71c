"""May this client be asked this? Pure functions over the capabilities of one request.

A `Capability` is a short name for one thing that a client may declare; the table says where it is
declared and what the client is told when it is missing (CAP-01 to CAP-05).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from antiphon.errors import CapabilityMissing

Capability = Literal[
    "form", "url", "sampling", "sampling.tools", "sampling.context", "roots", "tasks"
]
Capabilities = Mapping[str, Any]

TASKS = "io.modelcontextprotocol/tasks"
"""The identifier of the Tasks extension."""

_REQUIRED: Mapping[Capability, dict[str, Any]] = {
    "form": {"elicitation": {"form": {}}},
    "url": {"elicitation": {"url": {}}},
    "sampling": {"sampling": {}},
    "sampling.tools": {"sampling": {"tools": {}}},
    "sampling.context": {"sampling": {"context": {}}},
    "roots": {"roots": {}},
    "tasks": {"extensions": {TASKS: {}}},
}


def allows(capabilities: Capabilities, need: Capability) -> bool:
    """Whether the capabilities of a request include one."""
    if need == "form":
        elicitation = capabilities.get("elicitation")
        # An empty object means form mode; naming only `url` means no form mode (CAP-04).
        return isinstance(elicitation, dict) and (not elicitation or "form" in elicitation)
    top, _, sub = _path(need)
    declared = capabilities.get(top)
    if not isinstance(declared, dict):
        return False
    return not sub or isinstance(cast("dict[str, Any]", declared).get(sub), dict)


def _path(need: Capability) -> tuple[str, str, str]:
    if need == "url":
        return "elicitation", ".", "url"
    if need == "tasks":
        return "extensions", ".", TASKS
    return need.partition(".")


def required(needs: Iterable[Capability]) -> dict[str, Any]:
    """Build the ClientCapabilities object that names exactly these."""
    merged: dict[str, Any] = {}
    for need in needs:
        for top, sub in _REQUIRED[need].items():
            merged.setdefault(top, {}).update(sub)
    return merged


_EXTENSIONS, _EXTENSION = 32, 256
"""How many extensions are remembered of a client, and of how many characters at most."""


def known(capabilities: Capabilities) -> dict[str, Any]:
    """Return capabilities with nothing in them but what is ever looked for."""
    kept = required(need for need in _REQUIRED if allows(capabilities, need))
    names = [name for name in _extensions(capabilities) if len(name) <= _EXTENSION]
    if names:
        kept["extensions"] = {name: {} for name in names[:_EXTENSIONS]} | kept.get("extensions", {})
    return kept


def declares(capabilities: Capabilities, extension: str) -> bool:
    """Return whether an extension is declared, by its id; those of the protocol by a short name."""
    own = extension if "/" in extension else f"io.modelcontextprotocol/{extension}"
    return own in _extensions(capabilities)


def _extensions(capabilities: Capabilities) -> Mapping[str, Any]:
    declared = capabilities.get("extensions")
    if not isinstance(declared, dict):
        return {}
    found = cast("dict[str, Any]", declared)
    return {name: one for name, one in found.items() if isinstance(one, dict)}


def missing(capabilities: Capabilities, needs: Iterable[Capability]) -> list[Capability]:
    """List what the capabilities do not include, each once, in order."""
    return [need for need in dict.fromkeys(needs) if not allows(capabilities, need)]


def require(
    capabilities: Capabilities, needs: Sequence[Capability], what: str, *, begun: bool = False
) -> None:
    """Raise `CapabilityMissing` with exactly what is missing, all of it, or return."""
    for need in needs:
        if not allows(capabilities, need):
            raise CapabilityMissing(required(missing(capabilities, needs)), what, begun=begun)
