"""An HTTP API as a server to mount: FastMCP reads its OpenAPI document, and makes the requests."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import httpx2

from antiphon.apps.gateway.policy import Policy
from antiphon.errors import ConfigError
from antiphon.outbound.http_client import HttpClient, direct_connections
from antiphon.protocol.text import folded

MAX_REPLY = 32 * 1024 * 1024
"""Bytes of one reply of an API."""


@dataclass(frozen=True, slots=True)
class HttpApi:
    """An API that can be mounted, and what its tools do."""

    server: object
    """A `FastMCP` object with a tool for each operation."""

    title: str
    version: str
    operations: Mapping[str, str]
    """Method and path by the name of the tool: `DELETE /orders/{id}`."""

    def patterns(
        self,
        allow: Iterable[str],
        deny: Iterable[str],
        approve: Iterable[str] | Mapping[str, str],
    ) -> tuple[list[str], list[str], list[str]]:
        """Return the three as a mount takes them; those with a space are of method and path.

        Raises:
            ConfigError: One matches no operation: what it should keep back would pass.
        """
        needed: list[str] | dict[str, str] = _of_tools(approve)
        if isinstance(approve, Mapping):
            roles = cast("Mapping[str, str]", approve)
            needed = {f"tool:{pattern}": role for pattern, role in roles.items()}
        policy = Policy.read(_of_tools(allow), _of_tools(deny), needed)
        found: dict[str, list[str]] = {"allow": [], "deny": [], "approve": []}
        for rule in policy.rules:
            role = rule.approval.role if rule.approval is not None else ""
            for tool in self._tools(rule.pattern):
                found[rule.verb].append(f"tool:{tool}={role}".rstrip("="))
        return found["allow"], found["deny"], found["approve"]

    def _tools(self, pattern: str) -> list[str]:
        by_route = " " in pattern
        found = [
            tool
            for tool, operation in self.operations.items()
            if fnmatchcase(folded(operation if by_route else tool), folded(pattern))
        ]
        if not found:
            kind = "method and path" if by_route else "tool"
            raise ConfigError(f"no operation of the API has a {kind} like {pattern!r}")
        return found


def _of_tools(patterns: Iterable[str]) -> list[str]:
    if isinstance(patterns, str):
        raise ConfigError(f"patterns are given as a list, not as the text {patterns!r}")
    return [f"tool:{pattern.removeprefix('tool:')}" for pattern in patterns]


def read_document(spec: Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    """Return an OpenAPI document; from a file if a path is given, in JSON or YAML.

    Raises:
        ConfigError: The file cannot be read, or there is no document of version 3 in it.
    """
    document: object = spec
    if isinstance(spec, str | Path):
        yaml = _module("yaml")
        try:
            document = yaml.safe_load(Path(spec).read_text("utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"the OpenAPI document cannot be read: {error}") from error
    if not isinstance(document, Mapping):
        raise ConfigError("an OpenAPI document is a mapping, or a file with one")
    found = cast("Mapping[str, Any]", document)
    if not str(found.get("openapi", "")).startswith("3."):
        raise ConfigError("the document has no 'openapi: 3...': only version 3 can be read")
    return found


def read_api(
    document: Mapping[str, Any],
    *,
    url: str | None,
    headers: Mapping[str, str] | None,
    auth: httpx2.Auth | None,
    http_client: httpx2.AsyncClient | None,
    timeout: float,
) -> HttpApi:
    """Return the API of a document; nothing is sent yet.

    Raises:
        ConfigError: FastMCP is not installed, it cannot read the document, or nobody says where
            the API is.
    """
    fastmcp = _module("fastmcp")
    if http_client is not None and (url or headers or auth):
        raise ConfigError(
            "http_client= has its own base URL, headers and auth: leave out the others"
        )
    transport = direct_connections()
    client = http_client or HttpClient(
        base_url=url or _address(document),
        plain_origin=url,
        headers=headers,
        auth=auth,
        seconds=timeout,
        max_reply=MAX_REPLY,
        transport=transport,
    )
    operations: dict[str, str] = {}

    def note(route: Any, tool: Any) -> None:
        operations[tool.name] = f"{route.method.upper()} {route.path}"

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await transport.aclose()  # its connections; a server may run again

    try:
        server = fastmcp.FastMCP.from_openapi(
            dict(document),
            client,
            # What an API sends although its document does not say so has happened all the same.
            validate_output=False,
            mcp_component_fn=note,
            lifespan=lifespan,
        )
    except Exception as error:
        raise ConfigError(f"FastMCP cannot read the OpenAPI document: {error}") from error
    info = cast("Mapping[str, Any]", document.get("info") or {})
    return HttpApi(
        server, str(info.get("title", "api")), str(info.get("version", "0.0.0")), operations
    )


def _address(document: Mapping[str, Any]) -> str:
    """Return where the document says that the API is.

    Raises:
        ConfigError: It does not, or with variables or without a host.
    """
    servers = cast("list[Mapping[str, Any]]", document.get("servers") or [])
    found = str(servers[0].get("url", "")) if servers else ""
    if not found.startswith(("http://", "https://")) or "{" in found:
        raise ConfigError("the document does not say where the API is: give url=")
    return found


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            "Server.from_openapi() needs FastMCP, which reads the document: "
            "pip install 'antiphon[openapi]'"
        ) from error
