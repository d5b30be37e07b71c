"""Names to handlers, and how each is listed. Every change is announced.

Owns what exists and which methods that opens; a listing is encoded once, at registration.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.core.request import Request
from antiphon.core.text import safe
from antiphon.engine.handler import Handler
from antiphon.errors import ConfigError, InvalidRequest, ResourceNotFound
from antiphon.handlers.uri_template import Template, is_template
from antiphon.subscriptions import Subscriptions
from antiphon.wire.headers import HeaderParam, compile_header_params

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Listed(msgspec.Struct, frozen=True):
    """A handler and its entry in a list."""

    handler: Handler
    entry: bytes
    headers: Mapping[str, HeaderParam] | None = None
    template: Template | None = None
    arguments: tuple[str, ...] = ()
    number: int = 0
    """Grows with each registration; the lists are in this order, and cursors name it."""


class Registry:
    """Everything a server offers."""

    def __init__(self, hub: Subscriptions) -> None:
        self._hub = hub
        self.tools: dict[str, Listed] = {}
        self.prompts: dict[str, Listed] = {}
        self.resources: dict[str, Listed] = {}
        self.templates: dict[str, Listed] = {}
        self._registered = 0
        self.revision = 0
        """Grows with every change; a cached page of another revision is stale."""

        self.kinds: set[str] = set()
        """What has ever been offered: a capability is not taken back with the last tool."""

    # --- adding and removing ---------------------------------------------------------------------

    def add_tool(self, handler: Handler, entry: Mapping[str, Any]) -> None:
        """Register a tool with its entry in `tools/list`."""
        name = _checked(handler.name, "tool")
        headers = compile_header_params(entry["inputSchema"]) or None
        self._add("tools", self.tools, name, Listed(handler, _encode(entry), headers))
        self._hub.tools_changed()

    def add_prompt(self, handler: Handler, entry: Mapping[str, Any]) -> None:
        """Register a prompt with its entry in `prompts/list`."""
        name = _checked(handler.name, "prompt")
        arguments = tuple(a["name"] for a in entry.get("arguments", ()))
        self._add(
            "prompts", self.prompts, name, Listed(handler, _encode(entry), arguments=arguments)
        )
        self._hub.prompts_changed()

    def add_resource(self, handler: Handler, entry: Mapping[str, Any]) -> None:
        """Register a resource or, when its URI has variables, a template."""
        uri = handler.name
        if is_template(uri):
            template = Template(uri)
            listed = Listed(handler, _encode(entry), template=template, arguments=template.names)
            self._add("resources", self.templates, uri, listed)
        else:
            self._add("resources", self.resources, uri, Listed(handler, _encode(entry)))
        self._hub.resources_changed()

    def _add(self, kind: str, table: dict[str, Listed], name: str, listed: Listed) -> None:
        if name in table:
            what = f"{listed.handler.kind} {name!r} is registered already"
            other = "URI" if kind == "resources" else "name="
            raise ConfigError(f"{what}. Give one of the two another {other}.")
        self._registered += 1
        table[name] = msgspec.structs.replace(listed, number=self._registered)
        self.kinds.add(kind)
        self.revision += 1

    def replace(self, old: Handler, new: Handler) -> None:
        """Replace a handler by another with the same name; its place in the list stays."""
        for table in (self.tools, self.prompts, self.resources, self.templates):
            listed = table.get(old.name)
            if listed is not None and listed.handler is old:
                table[old.name] = msgspec.structs.replace(listed, handler=new)

    def remove(self, kind: str, name: str) -> bool:
        """Remove a tool, prompt or resource; False if there is none."""
        tables = {
            "tool": (self.tools, self._hub.tools_changed),
            "prompt": (self.prompts, self._hub.prompts_changed),
            "resource": (self.resources, self._hub.resources_changed),
            "template": (self.templates, self._hub.resources_changed),
        }
        table, changed = tables[kind]
        if table.pop(name, None) is None:
            return False
        self.revision += 1
        changed()
        return True

    # --- finding ---------------------------------------------------------------------------------

    def find(self, round: Request) -> tuple[Handler, Mapping[str, Any] | None]:
        """Return the handler of a call and its raw arguments.

        Raises:
            InvalidRequest: There is none of that name (-32602).
        """
        target = round.target
        if round.method == "tools/call":
            listed = self.tools.get(target)
            if listed is not None:
                handler = listed.handler
                if handler.legacy is None:
                    return handler, round.arguments
                return self._for(round, handler), round.arguments
            raise InvalidRequest(f"Unknown tool: {safe(target, 200)}")
        if round.method == "prompts/get":
            listed = self.prompts.get(target)
            if listed is not None:
                return self._for(round, listed.handler), round.arguments
            raise InvalidRequest(f"Unknown prompt: {safe(target, 200)}")
        return self._find_resource(round)

    def _find_resource(self, round: Request) -> tuple[Handler, Mapping[str, Any] | None]:
        uri = round.target
        listed = self.resources.get(uri)
        if listed is not None:
            return self._for(round, listed.handler), None
        for listed in self.templates.values():
            values = listed.template.match(uri) if listed.template is not None else None
            if values is not None:
                return self._for(round, listed.handler), values
        raise ResourceNotFound("Resource not found", data={"uri": safe(uri, 2_000)})

    def _for(self, round: Request, handler: Handler) -> Handler:
        """Return the handler for the client's era."""
        if handler.legacy is not None and round.era == "legacy":
            return handler.legacy
        return handler


def _checked(name: str, kind: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{kind} name {name!r}: use 1 to 128 of A-Z a-z 0-9 _ . -")
    return name


def _encode(entry: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(entry)
