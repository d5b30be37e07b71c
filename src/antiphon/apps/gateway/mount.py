"""A server behind ours: what it offers is registered with us for as long as we run.

Owns the names under which its tools, prompts and resources are known here, keeping them as the
other server changes them, and what stands before a call that is passed on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from antiphon.apps.gateway.forwarding import Forwarding
from antiphon.apps.gateway.mounts import MountReport, Owners, UnmatchedRule, tell_changes
from antiphon.apps.gateway.open_call import forward_open
from antiphon.apps.gateway.pins import ToolPins
from antiphon.apps.gateway.policy import Policy, PolicyRule, RuleKind, Verdict
from antiphon.apps.gateway.rounds import forward_rounds
from antiphon.apps.gateway.upstream import Upstream, UpstreamSettings
from antiphon.apps.gateway.uris import NoNormalForm, has_scheme, normal_uri
from antiphon.apps.gateway.watching import ALL, ChangeWatcher, Kind
from antiphon.client.errors import ClientError, RemoteError, ReplyTimeExceeded
from antiphon.engine.context import Context, execution_of
from antiphon.engine.handler import Options
from antiphon.errors import ConfigError, ResourceNotFound, StartError, ToolError
from antiphon.handlers.admission import require_approval
from antiphon.handlers.foreign import ForeignHandlers, Run
from antiphon.handlers.registry import Listed
from antiphon.protocol.asks import TOOL_APPROVAL
from antiphon.protocol.changes import (
    Changes,
)
from antiphon.protocol.request import Request

_log = logging.getLogger("antiphon.gateway")

PARK = 3600.0
"""Seconds for which a request to a legacy server stays open while somebody thinks."""

MAX_LISTED = 5_000
"""Entries of one list that are passed on."""

LISTING = 120.0
"""Seconds for all pages of one list."""

_LISTS: Mapping[Kind, str] = {
    "tools": "list_tools",
    "prompts": "list_prompts",
    "resources": "list_resources",
    "templates": "list_resource_templates",
}
_KINDS: Mapping[Kind, RuleKind] = {
    "tools": "tool",
    "prompts": "prompt",
    "resources": "resource",
    "templates": "resource",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSettings:
    """What an author says about a mount."""

    upstream: UpstreamSettings
    policy: Policy
    prefix: str = ""
    """Put before the names of tools and prompts, with a line between."""

    checked: bool = False
    """Arguments that do not fit the schema of a tool are not sent."""

    lenient: bool = False
    """A rule that names nothing is logged, and no error."""

    pins: ToolPins | None = None
    """Digests of its tools; one that is new or has changed is not passed on."""

    park: float = PARK


class Mount:
    """One server, mounted."""

    def __init__(
        self,
        settings: MountSettings,
        handlers: ForeignHandlers,
        changes: Changes,
        theirs: Changes | None = None,
        owners: Owners | None = None,
    ) -> None:
        """Nothing is connected yet.

        Args:
            settings: What the author says.
            handlers: Where its tools, prompts and resources are registered.
            changes: Where we announce what changes.
            theirs: Where another server of this process announces it.
            owners: Which mount of this server each name belongs to.
        """
        self._owners = owners or Owners()
        self._offered: dict[Kind, dict[str, tuple[tuple[str, ...], Verdict]]] = {}
        """What is listed by kind: its names, and what becomes of it."""

        self._settings = settings
        self._policy = settings.policy
        self._handlers = handlers
        self._watcher = ChangeWatcher(self.name, changes, theirs, self._sync, self._resources)
        self._upstream = Upstream(settings.upstream, self._watcher.changed)
        self._entries: dict[tuple[Kind, str], Mapping[str, Any]] = {}
        """What is registered, by kind and name here, as it was listed."""

        self._unlisted: Listed | None = None
        self._syncing = asyncio.Lock()

    @property
    def name(self) -> str:
        """How logs call it."""
        return self._settings.upstream.name

    @property
    def needs_console(self) -> bool:
        """Whether somebody has to approve some of its calls in the inbox."""
        return self._policy.needs_console

    @property
    def report(self) -> MountReport:
        """What becomes of everything it offers, and which rules name nothing."""
        lines = [
            (_KINDS[kind], name, verdict.words)
            for kind, entries in self._offered.items()
            for name, (_, verdict) in entries.items()
        ]
        matched = [rule.text for rule in self._policy.rules if self._names_something(rule)]
        unmatched = [rule for rule in self._policy.rules if rule.text not in matched]
        return MountReport(
            name=self.name,
            lines=tuple(lines),
            matched=frozenset(matched),
            unmatched=tuple(
                # Resources need not be listed to be read: such a rule may be right.
                UnmatchedRule(
                    str(rule.text),
                    rule.shared,
                    self._settings.lenient
                    or ("resource" in rule.kinds and "resources" in self._upstream.offered),
                )
                for rule in unmatched
            ),
        )

    def _names_something(self, rule: PolicyRule) -> bool:
        templates = self._offered.get("templates", {})
        return any(rule.may_match(template) for template in templates) or any(
            rule.matches(_KINDS[kind], names)
            for kind, entries in self._offered.items()
            for names, _ in entries.values()
        )

    async def start(self) -> None:
        """Connect, register what there is, and follow its changes.

        Raises:
            StartError: The server cannot be reached, or cannot be listed.
        """
        self._watcher.open()
        try:
            await self._upstream.open()
        except (ClientError, MCPError, OSError) as error:
            raise StartError(f"{self.name} cannot be reached: {error}") from error
        await self._first_lists()
        self._watcher.start(self._upstream)

    async def stop(self) -> None:
        """Unregister everything, and end every connection."""
        await self._watcher.stop()
        self._remove_all()
        await self._upstream.close()

    async def _first_lists(self) -> None:
        offered = self._upstream.offered
        self._handlers.offer(*(one for one in ("tools", "prompts", "resources") if one in offered))
        try:
            await self._sync(ALL)
        except (ClientError, MCPError) as error:
            raise StartError(f"{self.name} cannot be listed: {error}") from error
        if "resources" in offered and not self._settings.prefix:
            run = self._resource_run(listed=False)
            self._unlisted = self._handlers.add_unlisted(f"{self.name}:*", run, self._options())

    # --- lists -----------------------------------------------------------------------------------

    async def _sync(self, kinds: Sequence[Kind]) -> None:
        """Register what is listed now, and remove what is not any more."""
        offered = self._upstream.offered
        async with self._syncing:
            before = self.report if self._offered else None
            for kind in kinds:
                if ("resources" if kind == "templates" else kind) not in offered:
                    continue
                listing = cast(
                    "Callable[[], Awaitable[list[BaseModel]]]",
                    getattr(self._upstream.client, _LISTS[kind]),
                )
                try:
                    async with asyncio.timeout(LISTING):
                        found = await listing()
                except TimeoutError:
                    raise ReplyTimeExceeded(
                        f"no end of its list in {LISTING:g} s", "reply"
                    ) from None
                except RemoteError:
                    if kind != "templates":
                        raise
                    found = []  # a server with resources need not have templates
                self._replace(kind, [_entry(one) for one in found[:MAX_LISTED]])
            if before is not None:
                tell_changes(before, self.report)

    def _resources(self) -> list[str]:
        """Return the URIs that are listed."""
        return sorted(name for kind, name in self._entries if kind == "resources")

    def _replace(self, kind: Kind, entries: Sequence[dict[str, Any]]) -> None:
        wanted: dict[str, dict[str, Any]] = {}
        offered: dict[str, tuple[tuple[str, ...], Verdict]] = {}
        for entry in entries:
            name = self._name(kind, entry)
            verdict = self._judge(kind, name, entry)
            names = (name, entry["name"]) if kind in ("tools", "prompts") else (_judged(name),)
            offered.setdefault(name, (names, verdict))
            if verdict.passes:
                wanted.setdefault(name, entry)
        self._offered[kind] = offered
        for known, name in [key for key in self._entries if key[0] == kind]:
            if wanted.get(name) != self._entries[known, name]:
                self._handlers.remove(_KINDS[kind], name)
                del self._entries[known, name]
        for name, entry in wanted.items():
            if (kind, name) not in self._entries:
                self._add(kind, name, entry)

    def _name(self, kind: Kind, entry: Mapping[str, Any]) -> str:
        if kind == "templates":
            return entry["uriTemplate"]
        if kind == "resources":
            return entry["uri"]
        prefix = self._settings.prefix
        return f"{prefix}_{entry['name']}" if prefix else entry["name"]

    def _judge(self, kind: Kind, name: str, entry: Mapping[str, Any]) -> Verdict:
        if kind == "templates":
            return self._policy.judge_template(name)
        if kind == "resources":
            return self._policy.judge_uri(name, listed=True)[0]
        verdict = self._policy.judge(_KINDS[kind], name, entry["name"])
        pins = self._settings.pins
        if verdict.passes and kind == "tools" and pins is not None:
            changed = pins.differs(self.name, entry)
            if changed:
                return Verdict(passes=False, why=changed)
        return verdict

    def _claim(self, kind: Kind, name: str) -> None:
        if kind in ("tools", "prompts"):
            claimed = self._owners.claim(kind, name, self)
        else:
            if kind == "templates" and not has_scheme(name):
                raise ConfigError(f"the template {name!r} has no scheme of its own")
            uri = name if kind == "templates" else _judged(name)
            claimed = self._owners.claim_uris(uri, self, template=kind == "templates")
        if not claimed:
            raise ConfigError(f"{name!r} belongs to another server behind this one")

    def _add(self, kind: Kind, name: str, entry: Mapping[str, Any]) -> None:
        try:
            self._claim(kind, name)
            if kind == "tools":
                self._add_tool(name, entry)
            elif kind == "prompts":
                self._handlers.add_prompt(
                    {**entry, "name": name}, self._prompt_run(entry["name"]), self._options()
                )
                arguments = [one["name"] for one in entry.get("arguments") or ()]
                self._complete(name, arguments, {"type": "ref/prompt", "name": entry["name"]})
            else:
                names = self._handlers.add_resource(entry, self._resource_run(), self._options())
                if kind == "templates":
                    self._complete(name, names, {"type": "ref/resource", "uri": name})
        except ConfigError as error:
            _log.warning("%s: not passed on: %s", self.name, error)
        else:
            self._entries[kind, name] = entry

    def _add_tool(self, name: str, entry: Mapping[str, Any]) -> None:
        rule = self._policy.judge("tool", name, entry["name"]).approval
        holds = rule is not None and bool(rule.role)
        self._handlers.add_tool(
            {**entry, "name": name},
            self._tool_run(name, entry["name"]),
            self._options(holds=holds),
            checked=rule is not None or self._settings.checked,
        )

    def _options(self, *, holds: bool = False) -> Options:
        park = self._settings.park if self._upstream.era == "legacy" else None
        # People may think longer than a token usually lives; ours waits as long as theirs can.
        return Options(holds=holds, park=park, ttl=self._settings.park, unasked="accept")

    def _remove_all(self) -> None:
        for kind, name in self._entries:
            self._handlers.remove(_KINDS[kind], name)
        self._entries.clear()
        if self._unlisted is not None:
            self._handlers.remove_unlisted(self._unlisted)
            self._unlisted = None

    # --- calls -----------------------------------------------------------------------------------

    def _tool_run(self, here: str, there: str) -> Run:
        async def tool(ctx: Context, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
            verdict = self._policy.judge("tool", here, there)
            if not verdict.passes:
                raise ToolError("The gateway does not pass on calls of this tool.")
            rule = verdict.approval
            if rule is not None:
                await require_approval(ctx, rule.ask(here, arguments))
            params = {"name": there, "arguments": dict(arguments)}
            return await self._forward(ctx, "tools/call", params)

        return tool

    def _prompt_run(self, there: str) -> Run:
        async def prompt(ctx: Context, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
            params: dict[str, Any] = {"name": there}
            if arguments:
                params["arguments"] = dict(arguments)
            return await self._forward(ctx, "prompts/get", params)

        return prompt

    def _resource_run(self, *, listed: bool = True) -> Run:
        async def resource(ctx: Context, _: Mapping[str, Any]) -> Mapping[str, Any]:
            uri = _request(ctx).target
            verdict, judged = self._policy.judge_uri(uri, listed=listed)
            foreign = not listed and self._owners.is_of_another(_judged(uri), self)
            if foreign or not verdict.passes:
                raise ResourceNotFound("Resource not found", data={"uri": uri})
            exact = ("resources", uri) in self._entries
            return await self._forward(ctx, "resources/read", {"uri": uri if exact else judged})

        return resource

    async def _forward(
        self, ctx: Context, method: str, params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Pass a call on, to its end; returns its result.

        Raises:
            CallerError: The other server's JSON-RPC error.
            ToolError: There is no result, and nothing was repeated.
            EffectUncertain: A reply was lost.
        """
        forwarding = Forwarding(ctx, self._upstream, method, params, {TOOL_APPROVAL})
        if self._upstream.era == "legacy":
            return await forward_open(forwarding)
        return await forward_rounds(forwarding)

    def _complete(self, name: str, arguments: Sequence[str], ref: Mapping[str, str]) -> None:
        if "completions" not in self._upstream.offered:
            return
        reference = (
            types.PromptReference.model_validate(ref)
            if ref["type"] == "ref/prompt"
            else types.ResourceTemplateReference.model_validate(ref)
        )
        for argument in arguments:

            async def complete(
                value: str, others: Mapping[str, Any], argument: str = argument
            ) -> list[str]:
                known = {key: str(one) for key, one in others.items()}
                found = await self._upstream.client.complete(
                    reference, argument, value, context=known
                )
                return list(found)

            self._handlers.complete(name, argument, complete)


def _request(ctx: Context) -> Request:
    return execution_of(ctx).request


def _judged(uri: str) -> str:
    try:
        return normal_uri(uri)
    except NoNormalForm:
        return uri


def _entry(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)
