"""Names to handlers, and how each is listed. Every change is announced.

Owns what exists and which methods that opens; a listing is encoded once, at registration.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from antiphon.engine.handler import Handler
from antiphon.errors import ConfigError, InvalidRequest, ResourceNotFound
from antiphon.handlers.admission import HandlerAdmission
from antiphon.handlers.uri_template import Template, UriMatcher, is_template
from antiphon.protocol import changes
from antiphon.protocol.changes import Changes
from antiphon.protocol.envelope import Served
from antiphon.protocol.headers import HeaderParam, compile_header_params
from antiphon.protocol.methods import METHODS, Offered, opened_by
from antiphon.protocol.request import MODERN, Principal, Request
from antiphon.protocol.shapes import ListedKind, ShapeError, check_listed, write_json
from antiphon.protocol.text import safe

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_NO_SCOPES: frozenset[str] = frozenset()


class Listed(msgspec.Struct, frozen=True):
    """A handler and its entry in a list."""

    handler: Handler
    entry: bytes
    headers: Mapping[str, HeaderParam] | None = None
    template: UriMatcher | None = None
    arguments: tuple[str, ...] = ()
    number: int = 0
    """Grows with each registration; the lists are in this order, and cursors name it."""

    admission: HandlerAdmission | None = None
    """Who may call it, and how often; None where that is not limited."""

    direct: bool = True
    """Whether every request to it gets this handler: nothing has to be looked at first."""

    @property
    def scopes(self) -> frozenset[str]:
        """What the credential of a request to it must allow, besides the scopes of the server."""
        return _NO_SCOPES if self.admission is None else self.admission.scopes

    def sees(self, principal: Principal) -> bool:
        """Return whether a caller may know of it."""
        return self.admission is None or self.admission.sees(principal)

    def admits(self, request: Request) -> bool:
        """Count a request to it; False where its caller does not know of it.

        Raises:
            TooManyCalls: The caller has begun too many calls of it.
        """
        return self.admission is None or self.admission.admits(request)

    def settled(self) -> "Listed":
        """Return the same with what follows from the rest."""
        direct = self.admission is None and self.handler.legacy is None
        return msgspec.structs.replace(self, direct=direct)


class Registry:
    """Everything a server offers."""

    def __init__(self, announced: Changes) -> None:
        self._changes = announced
        self.served: Served = Served((MODERN,), set(), opened_by(""), {})
        """The methods that are served, and what headers mirror of tools: what the wire checks."""

        self.tools: dict[str, Listed] = {}
        self.prompts: dict[str, Listed] = {}
        self.resources: dict[str, Listed] = {}
        self.templates: dict[str, Listed] = {}
        self.unlisted: list[Listed] = []
        """Who serves what is not listed; the first one is asked."""

        self._registered = 0
        self.revision: int = 0
        """Grows with every change; a cached page of another revision is stale."""

        self.restricted: set[Offered] = set()
        """The lists that are not the same for every caller."""

    def offer(self, capability: Offered) -> None:
        """Declare a capability, which opens its methods."""
        if capability not in self.served.capabilities:
            self.served.capabilities.add(capability)
            self.served.methods.update(opened_by(capability))

    # --- adding and removing ---------------------------------------------------------------------

    def add_tool(
        self, handler: Handler, entry: Mapping[str, Any], admission: HandlerAdmission | None = None
    ) -> None:
        """Register a tool with its entry in `tools/list`."""
        name = _checked(handler.name, "tool")
        _check_entry("tool", name, entry)
        headers = compile_header_params(entry["inputSchema"]) or None
        if headers is not None and admission is not None and admission.restricted:
            raise ConfigError(
                f"tool {name!r}: visible= does not go together with x-mcp-header, because headers "
                "are checked for every caller"
            )
        listed = Listed(handler, _encode(entry), headers, admission=admission)
        self._add("tools", self.tools, name, listed)
        if headers is not None:
            self.served.header_params[name] = headers
        self._changes.announce(changes.TOOLS)

    def add_prompt(
        self, handler: Handler, entry: Mapping[str, Any], admission: HandlerAdmission | None = None
    ) -> None:
        """Register a prompt with its entry in `prompts/list`."""
        name = _checked(handler.name, "prompt")
        _check_entry("prompt", name, entry)
        arguments = tuple(a["name"] for a in entry.get("arguments", ()))
        listed = Listed(handler, _encode(entry), arguments=arguments, admission=admission)
        self._add("prompts", self.prompts, name, listed)
        self._changes.announce(changes.PROMPTS)

    def add_resource(
        self,
        handler: Handler,
        entry: Mapping[str, Any],
        admission: HandlerAdmission | None = None,
        *,
        matcher: UriMatcher | None = None,
    ) -> None:
        """Register a resource or, when its URI has variables, a template.

        Another `matcher` than ours says which URIs the template stands for.
        """
        uri = handler.name
        _check_entry("template" if "uriTemplate" in entry else "resource", uri, entry)
        listed = Listed(handler, _encode(entry), admission=admission)
        if matcher is not None or is_template(uri):
            template = matcher or Template(uri)
            listed = msgspec.structs.replace(listed, template=template, arguments=template.names)
            self._add("resources", self.templates, uri, listed)
        else:
            self._add("resources", self.resources, uri, listed)
        self._changes.announce(changes.RESOURCES)

    def add_unlisted(self, handler: Handler) -> Listed:
        """Let a handler serve the URIs that no resource and no template stands for."""
        listed = Listed(handler, b"").settled()
        self.unlisted.append(listed)
        self.offer("resources")
        return listed

    def _add(self, kind: Offered, table: dict[str, Listed], name: str, listed: Listed) -> None:
        if name in table:
            what = f"{listed.handler.kind} {name!r} is registered already"
            other = "URI" if kind == "resources" else "name="
            raise ConfigError(f"{what}. Give one of the two another {other}.")
        self._registered += 1
        table[name] = msgspec.structs.replace(listed, number=self._registered).settled()
        self.offer(kind)
        if listed.admission is not None and listed.admission.restricted:
            self.restricted.add(kind)
        self.revision += 1

    def replace(self, old: Handler, new: Handler) -> None:
        """Replace a handler by another with the same name; its place in the list stays."""
        for table in (self.tools, self.prompts, self.resources, self.templates):
            listed = table.get(old.name)
            if listed is not None and listed.handler is old:
                table[old.name] = msgspec.structs.replace(listed, handler=new).settled()

    def remove(self, kind: str, name: str) -> bool:
        """Remove a tool, prompt or resource; False if there is none."""
        tables = {
            "tool": (self.tools, changes.TOOLS),
            "prompt": (self.prompts, changes.PROMPTS),
            "resource": (self.resources, changes.RESOURCES),
            "template": (self.templates, changes.RESOURCES),
        }
        table, list_changed = tables[kind]
        if table.pop(name, None) is None:
            return False
        if kind == "tool":
            self.served.header_params.pop(name, None)
        self.revision += 1
        self._changes.announce(list_changed)
        return True

    def handlers(self) -> Iterator[Handler]:
        """Return the handlers of everything that is offered."""
        for table in (self.tools, self.prompts, self.resources, self.templates):
            yield from (listed.handler for listed in table.values())
        yield from (listed.handler for listed in self.unlisted)

    # --- finding ---------------------------------------------------------------------------------

    def find(self, round: Request) -> tuple[Handler, Mapping[str, Any] | None]:
        """Return the handler of a call and its raw arguments.

        Raises:
            InvalidRequest: There is none of that name (-32602), or none for this caller.
            TooManyCalls: The caller has begun too many calls of it.
        """
        target = round.target
        if round.method == "tools/call":
            listed = self.tools.get(target)
            if listed is not None:
                if listed.direct:
                    return listed.handler, round.arguments
                if listed.admits(round):
                    return self._for(round, listed.handler), round.arguments
            raise InvalidRequest(_unknown_tool(target))
        if round.method == "prompts/get":
            listed = self.prompts.get(target)
            if listed is not None and listed.admits(round):
                return self._for(round, listed.handler), round.arguments
            raise InvalidRequest(f"Unknown prompt: {safe(target, 200)}")
        return self._find_resource(round)

    def _find_resource(self, round: Request) -> tuple[Handler, Mapping[str, Any] | None]:
        uri = round.target
        for listed, values in self._readable(uri):
            if listed.admits(round):
                return self._for(round, listed.handler), values
        if self.unlisted:
            return self.unlisted[0].handler, None
        raise ResourceNotFound("Resource not found", data={"uri": safe(uri, 2_000)})

    def _readable(self, uri: str) -> Iterator[tuple[Listed, Mapping[str, Any] | None]]:
        """Return what a URI could be read from, in the order in which they are tried."""
        listed = self.resources.get(uri)
        if listed is not None:
            yield listed, None
        for listed in self.templates.values():
            values = listed.template.match(uri) if listed.template is not None else None
            if values is not None:
                yield listed, values

    def scopes_needed(
        self, method: str, params: Mapping[str, object], principal: Principal
    ) -> frozenset[str]:
        """Return the scopes that a request needs besides those of the server.

        What a caller may not know of needs none: it is not found. For a resource, those of the
        first handler that its URI could be read from.
        """
        seen = next((one for one in self._meant(method, params) if one.sees(principal)), None)
        return _NO_SCOPES if seen is None else seen.scopes

    def _meant(self, method: str, params: Mapping[str, object]) -> Iterable[Listed]:
        """Return what a request could be about, in the order in which it is looked for."""
        known = METHODS[method]
        if known.name == "completion/complete":
            return self._completed(params.get("ref"))
        target = params.get(known.target) if known.target is not None else None
        if not isinstance(target, str):
            return ()
        if known.capability == "resources":
            return (listed for listed, _ in self._readable(target))
        tables = {"tools/call": self.tools, "prompts/get": self.prompts}
        found = tables.get(method, {}).get(target)
        return () if found is None else (found,)

    def _completed(self, reference: object) -> Iterable[Listed]:
        """Return the prompt or template whose argument is to be completed."""
        if not isinstance(reference, Mapping):
            return ()
        named = cast("Mapping[str, object]", reference)
        if named.get("type") == "ref/prompt":
            found = self.prompts.get(str(named.get("name")))
        else:
            found = self.templates.get(str(named.get("uri")))
        return () if found is None else (found,)

    def may_watch(self, uri: str, request: Request) -> bool:
        """Return whether the credential of a request allows to hear of a resource."""
        granted = request.channel.scopes
        needed = self.scopes_needed("resources/subscribe", {"uri": uri}, request.principal)
        return granted is None or needed <= granted

    def hides(self, uri: str, principal: Principal) -> bool:
        """Return whether a resource exists that a caller may not know of."""
        if "resources" not in self.restricted:
            return False
        found = [listed.sees(principal) for listed, _ in self._readable(uri)]
        return bool(found) and not any(found)

    def _for(self, round: Request, handler: Handler) -> Handler:
        """Return the handler for the client's era."""
        if handler.legacy is not None and round.era == "legacy":
            return handler.legacy
        return handler


class TaskHandlers:
    """The handlers as runs of tasks find them: their calls were admitted when they began."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._served: list[tuple[str, str]] = []
        self._served_of = -1

    def served(self) -> Sequence[tuple[str, str]]:
        """Return what this process can run: each name with the version of its handler."""
        if self._served_of != self._registry.revision:
            self._served_of = self._registry.revision
            handlers = self._registry.handlers()
            self._served = [(one.name, one.options.version) for one in handlers]
        return self._served

    def find(self, request: Request) -> tuple[Handler, Mapping[str, Any] | None]:
        """Return the handler of a task and its raw arguments.

        Raises:
            InvalidRequest: There is none of that name.
        """
        if request.method != "tools/call":
            return self._registry.find(request)  # held calls; nothing limits how often they begin
        listed = self._registry.tools.get(request.target)
        if listed is None:
            raise InvalidRequest(_unknown_tool(request.target))
        return listed.handler, request.arguments

    def scopes_needed(self, tool: str) -> frozenset[str]:
        """Return the scopes that a request about a task of a tool needs."""
        listed = self._registry.tools.get(tool)
        return _NO_SCOPES if listed is None else listed.scopes


def _unknown_tool(name: str) -> str:
    return f"Unknown tool: {safe(name, 200)}"


def _checked(name: str, kind: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{kind} name {name!r}: use 1 to 128 of A-Z a-z 0-9 _ . -")
    return name


def _check_entry(kind: ListedKind, name: str, entry: Mapping[str, Any]) -> None:
    """Refuse an entry that clients could not read: it would cost them the whole list.

    Raises:
        ConfigError: Names the member that is wrong.
    """
    try:
        check_listed(kind, entry)
    except ShapeError as error:
        raise ConfigError(f"{kind} {name!r} cannot be listed: {error}") from None


def _encode(entry: Mapping[str, Any]) -> bytes:
    try:
        return write_json(entry, f"the entry of {entry.get('name')!r}")
    except ShapeError as error:
        raise ConfigError(str(error)) from None
