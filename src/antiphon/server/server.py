"""`Server`: what authors write against. Its parts are joined in `assembly`."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from antiphon.errors import ConfigError
from antiphon.handlers.foreign import ForeignHandlers
from antiphon.handlers.middleware import Middleware
from antiphon.ports import Store
from antiphon.ports.call_end import F
from antiphon.protocol.changes import RESOURCE
from antiphon.protocol.limits import Limits
from antiphon.protocol.request import MODERN, NO_CHANNEL, Channel, Principal, Request
from antiphon.seal.policy import Seal
from antiphon.server.assembly import ServerPlan, ServerSettings, assemble
from antiphon.server.construction import Access, check, counted, enter, loading_within, served
from antiphon.server.running import RunnableServer
from antiphon.transports.dispatcher import ServerInfo
from antiphon.transports.http.principal import PrincipalOf
from antiphon.transports.in_process import InProcessChannel, make_request, serve_request

if TYPE_CHECKING:
    from pathlib import Path

    from antiphon.apps.gateway.pins import ToolPins
    from antiphon.auth import OAuth
    from antiphon.console import Console

_THIS_PROCESS = Principal(transport="process")


class Server(RunnableServer):
    """An MCP server whose handlers may ask in the middle of a call.

    Args:
        name: What the server calls itself; also the audience of its tokens.
        version: Of the server, for display.
        title: A name for people.
        instructions: How a model should use the server.
        seal: Keys and lifetime of tokens; without keys, `ANTIPHON_KEYS`, else made at start.
        store: A URL or a store: where it is kept what happened once; without it,
            `ANTIPHON_STORE`, else memory.
        limits: Bounds of calls, rounds and requests.
        principal: Says who calls, from the ASGI scope; raising refuses the request.
        auth: Requests over HTTP need an access token: `OAuth(issuer=..., audience=...)`.
        lifespan: Takes the server and returns an async context manager that is open while the
            server runs, in every process; handlers find what it yields by `ctx.lifespan(Type)`.
        middleware: Async functions of a call and of `next`, around every handler; the first one is
            outermost.
        console: The web pages where people decide who are not the client.
        settings: What few servers set: `redeem`, `eras`, `task_runs`, `carrier`, `audit`,
            `telemetry`, `cache`, `unknown_after`, `expose_errors`; for tests `clock`, `entropy`
            and `environ`.
            `antiphon.server.assembly.ServerSettings` has a line on each.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "0.0.0",
        title: str | None = None,
        instructions: str | None = None,
        seal: Seal | None = None,
        store: str | Store | None = None,
        limits: Limits | None = None,
        principal: PrincipalOf | None = None,
        auth: "OAuth | None" = None,
        lifespan: "Callable[[Server], AbstractAsyncContextManager[object]] | None" = None,
        middleware: Sequence[Middleware] = (),
        console: "Console | None" = None,
        **settings: Unpack[ServerSettings],
    ) -> None:
        """Make a server; nothing is opened before a transport starts."""
        check(name, settings)
        access, around = Access(principal, auth), loading_within.get()
        if around is not None:
            console, middleware = around.console_for(console), (*around.middleware, *middleware)
            access = around.access_for(principal, auth)
        counts = None if console is None else counted(settings)
        plan = ServerPlan(
            info=ServerInfo(name, version, title, instructions),
            limits=limits or Limits(),
            seal=seal or Seal(),
            store=store,
            settings=settings,
            lifespan=None if lifespan is None else partial(enter, lifespan, self),
            inbox=None if console is None else console.place,
        )
        plan = plan if around is None else around.put_around(plan)
        parts = assemble(plan)
        pages = None if console is None else served(console, counts, parts)
        super().__init__(plan, parts, access, pages, middleware)

    def resource_updated(self, uri: str) -> None:
        """Notify subscribers that a resource has changed."""
        self.parts.changes.announce(RESOURCE, uri)

    async def exchange(
        self,
        method: str,
        params: Mapping[str, Any],
        notify: Callable[[str, Mapping[str, Any]], Awaitable[None]],
    ) -> Mapping[str, Any]:
        """Serve one modern request of this process; for `Client(server)` and for tests.

        Raises:
            CallerError: With `code`, `message` and `data`: the JSON-RPC error.
        """
        return await self.serve(self.request(method, params, channel=InProcessChannel(notify)))

    def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        principal: Principal = _THIS_PROCESS,
        version: str = MODERN,
        capabilities: Mapping[str, Any] | None = None,
        client: Mapping[str, Any] | None = None,
        channel: Channel = NO_CHANNEL,
    ) -> Request:
        """Return one request as a value, checked, for `serve`; such as that of another framework.

        Args:
            method: The JSON-RPC method.
            params: Its params as they came, answers and token too. What the arguments below say is
                put into `_meta`.
            principal: Who calls. Whoever makes the request vouches for it.
            version: The protocol revision; an earlier one makes a request of a legacy session.
            capabilities: What the client declared; else what `_meta` says.
            client: Name and version that the client claims.
            channel: How the client is reached meanwhile: for notifications, and for the asks of a
                legacy session.

        Raises:
            InvalidRequest: What the client is to be told.
        """
        if self.flows:
            self._check_flows()
        return make_request(
            self.dispatcher.served,
            method,
            params or {},
            principal=principal,
            version=version,
            capabilities=capabilities,
            client=client,
            channel=channel,
        )

    async def serve(self, request: Request) -> dict[str, Any]:
        """Serve one request; returns its result as JSON values. The server must be `running()`.

        Raises:
            CallerError: With `code`, `message` and `data`: the JSON-RPC error.
        """
        return await serve_request(self.dispatcher, request)

    def tools(self, principal: Principal | None = None) -> list[dict[str, Any]]:
        """Return the tools as `tools/list` shows them, with their schemas.

        Args:
            principal: Leave out what this caller may not know of.
        """
        return self._catalog.tools(principal)

    def mount(
        self,
        target: object,
        *,
        prefix: str = "",
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        approve: Iterable[str] | Mapping[str, str] = (),
        default: Literal["allow", "approve", "deny"] | None = None,
        unmatched: Literal["error", "warn"] = "error",
        lock: "str | Path | ToolPins | None" = None,
        era: Literal["auto", "modern", "legacy"] = "auto",
        timeout: float = 300.0,
        checked: bool = False,
        **options: Any,
    ) -> None:
        """Serve what another server offers beside our own, for as long as this server runs.

        Each of its rounds is an effect of ours, and what it asks is asked as our own. All callers
        share one identity there.

        Args:
            target: As for `Client`: a URL, a command, another `Server`, an `MCPServer` or `FastMCP`
                object, or a function that makes a transport of the official SDK.
            prefix: Put before the names of its tools and prompts, as in `shop_refund`. Resources
                keep their URIs.
            allow: Patterns of what is seen; without any, everything is. Names count as the server
                writes them, with or without the prefix. A pattern with a colon is of resources,
                any other of tools and prompts; `tool:`, `prompt:` or `resource:` before it says so.
            deny: Patterns of what is never seen, whatever the case of its letters.
            approve: Tools that need an approval: `"delete_*"` of the caller, `"delete_*=ops"` of
                somebody with that role in the console's inbox; or a mapping from pattern to role.
            default: What becomes of tools that no pattern names; prompts and resources pass only
                with `"allow"`. Unless given: `"deny"` if something is allowed by name.
            unmatched: `"warn"` to log a pattern that names nothing instead of refusing to start.
            lock: A file with the digests of its tools, written by `antiphon gateway --accept`. A
                tool that is new or has changed is not seen until it is written again.
            era: `legacy` for a server of both eras whose tools ask in the middle of a request.
            timeout: Seconds for one reply.
            checked: Arguments that do not fit the schema of a tool are refused here and not sent;
                those of tools that need an approval always are.
            options: Of the target, as for `Client`: `headers`, `auth`, `http_client`, `not_done`;
                `env`, `cwd`.

        Raises:
            ConfigError: The settings do not fit, or this server runs already.
        """
        from antiphon.apps.gateway.assembly import mount_of

        handlers = ForeignHandlers(self._registry, self._catalog, self._compiler, self._cache)
        made = mount_of(
            handlers,
            self.parts.changes,
            target,
            prefix=prefix,
            policy=(allow, deny, approve),
            era=era,
            timeout=timeout,
            checked=checked,
            options=options,
            theirs=target.dispatcher.changes if isinstance(target, Server) else None,
            default=default,
            unmatched=unmatched,
            lock=lock,
            owners=self._mounts.owners,
        )
        if made.needs_console and self.console is None:
            raise ConfigError(
                "an approval by a role needs Server(console=Console(...)), where people decide"
            )
        self._mounts.add(made)

    @classmethod
    def from_openapi(
        cls,
        spec: "Mapping[str, Any] | str | Path",
        *,
        name: str | None = None,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        http_auth: Any = None,
        http_client: Any = None,
        timeout: float = 30.0,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        approve: Iterable[str] | Mapping[str, str] = (),
        default: Literal["allow", "approve", "deny"] | None = None,
        **options: Any,
    ) -> "Server":
        """Make a server with a tool for each operation of an HTTP API. Needs `antiphon[openapi]`.

        Patterns are of names, as for `mount`, or of method and path: `"DELETE *"`,
        `"POST /orders/*"`. One that matches no operation is an error.

        Args:
            spec: The OpenAPI document, version 3; or the path of a file with it, JSON or YAML.
            name: Of the server; the title of the API unless given.
            url: Where the API is; the first of the document's `servers` unless given.
            headers: Sent with every request, such as `Authorization`.
            http_auth: An `httpx2.Auth`, for every request.
            http_client: An `httpx2.AsyncClient`, instead of the three above; you close it.
            timeout: Seconds for one reply of the API.
            allow: Only operations that match one of these are tools.
            deny: Operations that match one of these are no tools.
            approve: Operations that need an approval: `"DELETE *"` of the caller, `"DELETE *=ops"`
                of somebody with that role in the console's inbox; or a mapping to roles.
            default: What becomes of operations that no pattern names, as for `mount`.
            options: As for `Server`.

        Raises:
            ConfigError: FastMCP is not installed, the document cannot be read, or the settings do
                not fit.
        """
        from antiphon.apps.gateway.openapi import read_api, read_document

        api = read_api(
            read_document(spec),
            url=url,
            headers=headers,
            auth=http_auth,
            http_client=http_client,
            timeout=timeout,
        )
        allowed, denied, approved = api.patterns(allow, deny, approve)
        options.setdefault("version", api.version)
        server = cls(name or api.title, **options)
        server.mount(
            api.server,
            allow=allowed,
            deny=denied,
            approve=approved,
            default=default,
            timeout=timeout + 30.0,
            checked=True,
        )
        return server

    def on_end(self, fn: F) -> F:
        """Call a function, sync or async, at the end of every call; it takes a `CallEnd`.

        What it raises is logged. A sync function must not wait: the reply is sent after it.
        """
        return self._services.ends.add(fn)
