"""Requests of a program in this process: made from values, served without bytes or sockets.

For servers of other frameworks that hand a request on, for `Client(server)`, and for tests.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec

from antiphon.errors import METHOD_NOT_FOUND, InvalidRequest, StoreError
from antiphon.protocol import params as shapes
from antiphon.protocol.envelope import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    PROTOCOL_VERSION,
    Served,
    admit,
    valid_trace,
)
from antiphon.protocol.methods import LEGACY_METHODS
from antiphon.protocol.request import LEGACY, MODERN, NO_CHANNEL, Channel, Principal, Request
from antiphon.transports.dispatcher import Dispatcher
from antiphon.transports.legacy.revisions import abilities, degrade

Notify = Callable[[str, Mapping[str, Any]], Awaitable[None]]


class InProcessChannel(Channel):
    """The channel of a request in this process; cancelling the request cancels the round."""

    def __init__(self, notify: Notify) -> None:
        """Hand notifications to a function."""
        self._notify = notify

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Hand over a notification."""
        await self._notify(method, params)


def make_request(
    served: Served,
    method: str,
    params: Mapping[str, Any],
    *,
    principal: Principal,
    version: str = MODERN,
    capabilities: Mapping[str, Any] | None = None,
    client: Mapping[str, Any] | None = None,
    channel: Channel = NO_CHANNEL,
) -> Request:
    """Check a request and make a value of it.

    Raises:
        InvalidRequest: What a client would be told.
    """
    if version in LEGACY:
        request = Request(
            method=method,
            capabilities=abilities(capabilities or {}, version) if channel.can_ask else {},
            principal=principal,
            version=version,
            era="legacy",
            client=client,
            channel=channel,
            params=dict(params),
        )
        return _legacy(served, request)
    meta = dict(cast("Mapping[str, Any]", params.get("_meta") or {}))
    meta.setdefault(PROTOCOL_VERSION, version)
    if capabilities is not None:
        meta[CLIENT_CAPABILITIES] = dict(capabilities)
    meta.setdefault(CLIENT_CAPABILITIES, {})
    if client is not None:
        meta[CLIENT_INFO] = dict(client)
    message = {"jsonrpc": "2.0", "id": 0, "method": method, "params": {**params, "_meta": meta}}
    return admit(message, served, principal, channel=channel)


def _legacy(served: Served, request: Request) -> Request:
    """Check a request of an earlier revision, and read its params."""
    known, params = LEGACY_METHODS.get(request.method), request.params
    if known is None or "modern" not in known.eras or request.method not in served.methods:
        raise InvalidRequest("Method not found", code=METHOD_NOT_FOUND)
    request.arguments = shapes.check(request.method, known.target, params)
    if known.target is not None:
        request.target = params[known.target]
    meta = cast("Mapping[str, Any]", params.get("_meta") or {})
    request.progress_token = meta.get("progressToken")
    request.trace = valid_trace(meta.get("traceparent"))
    return request


async def serve_request(dispatcher: Dispatcher, request: Request) -> dict[str, Any]:
    """Serve one request; returns its result as the wire has it in the client's revision.

    Raises:
        CallerError: With `code`, `message` and `data`: the JSON-RPC error.
    """
    try:
        result = msgspec.json.decode(await dispatcher.dispatch(request))
    except StoreError as error:
        raise dispatcher.refusal(error) from error
    return degrade(request.method, result, request.version) if request.era == "legacy" else result
