"""One request of the official SDK's server, handed on to a server of ours.

FastMCP is built on that server, so this is the way in for both. Owns who is calling, how the client
is reached meanwhile, and what the SDK is given back.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import RequestParams
from pydantic import ConfigDict

from antiphon.errors import InvalidRequest, Unavailable
from antiphon.protocol.envelope import is_deeper
from antiphon.protocol.quotas import weight
from antiphon.protocol.request import LEGACY, Principal, Request
from antiphon.server import Server
from antiphon.transports.http.access import HttpRefusal
from antiphon.transports.http.principal import IdentifiedCaller, identifier
from antiphon.transports.legacy.back_channel import SessionChannel, SessionlessChannel
from antiphon.transports.legacy.handlers import CALL_BYTES, ended

HostContext = ServerRequestContext[Any, Any]

_SERVER_INFO = "io.modelcontextprotocol/serverInfo"
_LOG_LEVEL = "info"
"""What is logged to a legacy client: which level it has set, only its server knows."""

_ON_STDIO = IdentifiedCaller(Principal(transport="stdio"), None)
_identify = identifier(None, None)


class AnyParams(RequestParams):
    """Params as they came; ours are checked by us."""

    model_config = ConfigDict(extra="allow")


class _HostNotices(SessionlessChannel):
    """A client that can be notified, with the scopes of its request."""

    def __init__(self, context: HostContext, granted: frozenset[str] | None) -> None:
        super().__init__(context)
        self._granted = granted

    @property
    def scopes(self) -> frozenset[str] | None:
        """What the credential of this request allows."""
        return self._granted


class _HostSession(SessionChannel):
    """A legacy client that can be asked, with the scopes of its request."""

    def __init__(
        self, context: HostContext, server: Server, granted: frozenset[str] | None
    ) -> None:
        super().__init__(context, server.parts.environment.entropy)
        self._granted = granted

    @property
    def scopes(self) -> frozenset[str] | None:
        """What the credential of this request allows."""
        return self._granted


async def hand_on(
    server: Server, context: HostContext, method: str, params: Mapping[str, Any], *, tasks: bool
) -> dict[str, Any]:
    """Serve one request; returns its result as the wire has it in the client's revision.

    Args:
        server: Ours; it must be running.
        context: Of the request at their server.
        method: The JSON-RPC method.
        params: Its params, with `requestState` as we gave it.
        tasks: Whether tasks of ours can be asked for at their server.

    Raises:
        MCPError: What the client is told.
    """
    task = asyncio.ensure_future(_serve(server, context, method, params, tasks))
    await ended(task)
    try:
        if task.cancelled():
            raise Unavailable("the server is shutting down; call again")
        return _without_our_name(task.result())
    except Exception as error:  # noqa: BLE001 - the outermost: every error becomes an answer
        refused = server.dispatcher.refusal(error)
        raise MCPError(refused.code, refused.message, refused.data) from None


async def _serve(
    server: Server, context: HostContext, method: str, params: Mapping[str, Any], tasks: bool
) -> dict[str, Any]:
    request = await _request(server, context, method, params, tasks)
    if request.era == "modern":
        return await server.serve(request)
    # The handler stays in memory while a person thinks.
    calls = server.dispatcher.holdings.legacy_calls
    owner, size = request.principal.owner, CALL_BYTES + weight(request.params)
    calls.require(owner, size)
    try:
        return await server.serve(request)
    finally:
        calls.give_back(owner, size)


async def _request(
    server: Server, context: HostContext, method: str, params: Mapping[str, Any], tasks: bool
) -> Request:
    # Their parser bounds the nesting by what it can bear; digests of ours bear less.
    if is_deeper(dict(params), server.limits.depth):
        raise InvalidRequest(f"the message is nested deeper than {server.limits.depth} levels")
    caller = await _caller(context)
    version = context.protocol_version
    if version not in LEGACY:
        channel = _HostNotices(context, caller.scopes)
        request = server.request(
            method, params, principal=caller.principal, version=version, channel=channel
        )
        if not tasks:  # those that the client takes are somebody else's here
            declared = request.capabilities.items()
            request.capabilities = {name: one for name, one in declared if name != "extensions"}
        return request
    if "legacy" not in server.eras:
        raise InvalidRequest("these tools are served to clients of the modern protocol only")
    session = context.session
    client, declared = session.client_params, session.client_capabilities
    request = server.request(
        method,
        params,
        principal=caller.principal,
        version=version,
        capabilities=_plain(declared),
        client=_plain(client.client_info) if client else None,
        channel=_HostSession(context, server, caller.scopes)
        if session.can_send_request
        else _HostNotices(context, caller.scopes),
    )
    request.log_level = _LOG_LEVEL
    return request


async def _caller(context: HostContext) -> IdentifiedCaller:
    """Return whom their server has authenticated, as our own transport would."""
    if context.request is not None:
        found = await _identify(context.request.scope)
    elif (token := get_access_token()) is not None:
        found = await _identify({"user": AuthenticatedUser(token), "auth": token})
    else:
        found = _ON_STDIO
    if isinstance(found, HttpRefusal):
        raise InvalidRequest(found.text)
    return found


def _plain(model: Any) -> dict[str, Any]:
    if model is None:
        return {}
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _without_our_name(result: dict[str, Any]) -> dict[str, Any]:
    """Leave it to their server to say who answers."""
    meta = cast("dict[str, Any]", result.pop("_meta", {}))
    kept = {name: one for name, one in meta.items() if name != _SERVER_INFO}
    return {**result, "_meta": kept} if kept else result
