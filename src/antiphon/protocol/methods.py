"""The one table of protocol methods: what each names, may do and needs.

Everything that has to know a method reads it here: the checks of the wire, the dispatcher, the
catalog, the handlers of older sessions and the client.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from antiphon.protocol.request import Era

Offered = Literal["", "tools", "prompts", "resources", "completions", "logging", "tasks"]


class Method(msgspec.Struct, frozen=True):
    """One method that a client may call."""

    name: str
    capability: Offered = ""
    """What the server must offer for it; nothing for the methods that every server has."""

    target: str | None = None
    """The member of params that names what is meant; mirrored by the `Mcp-Name` header."""

    may_ask: bool = False
    """Whether it may take several rounds, so that it may carry answers and a token."""

    items: str = ""
    """The member of the result that holds the page, for the lists."""

    eras: tuple[Era, ...] = ("modern", "legacy")


_MODERN: tuple[Era, ...] = ("modern",)
_LEGACY: tuple[Era, ...] = ("legacy",)

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("server/discover", eras=_MODERN),
        Method("tools/list", "tools", items="tools"),
        Method("tools/call", "tools", target="name", may_ask=True),
        Method("prompts/list", "prompts", items="prompts"),
        Method("prompts/get", "prompts", target="name", may_ask=True),
        Method("resources/list", "resources", items="resources"),
        Method("resources/templates/list", "resources", items="resourceTemplates"),
        Method("resources/read", "resources", target="uri", may_ask=True),
        Method("resources/subscribe", "resources", target="uri", eras=_LEGACY),
        Method("resources/unsubscribe", "resources", target="uri", eras=_LEGACY),
        Method("completion/complete", "completions"),
        Method("logging/setLevel", eras=_LEGACY),
        Method("subscriptions/listen", eras=_MODERN),
        Method("tasks/get", "tasks", target="taskId", eras=_MODERN),
        Method("tasks/update", "tasks", target="taskId", eras=_MODERN),
        Method("tasks/cancel", "tasks", target="taskId", eras=_MODERN),
    )
}

MODERN_METHODS = {name: method for name, method in METHODS.items() if "modern" in method.eras}
LEGACY_METHODS = {name: method for name, method in METHODS.items() if "legacy" in method.eras}

MAY_ASK = frozenset(name for name, method in METHODS.items() if method.may_ask)
"""The methods whose calls may take several rounds."""

TASK_METHODS = frozenset(name for name, method in METHODS.items() if method.capability == "tasks")
"""The methods about one task."""


def opened_by(capability: Offered) -> dict[str, Method]:
    """Return the modern methods that a declared capability opens."""
    return {name: one for name, one in MODERN_METHODS.items() if one.capability == capability}
