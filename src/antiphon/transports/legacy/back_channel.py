"""The back channel of one legacy request: asks and notifications on that request's own stream.

Owns how a failed ask is read. The engine has checked the client's capabilities before; the SDK
checks none.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    REQUEST_TIMEOUT,
    Notification,
    Request,
    Result,
)
from pydantic import ConfigDict, ValidationError

from antiphon.errors import ToolError
from antiphon.ports import Entropy
from antiphon.protocol.request import Channel, LegacyAsk
from antiphon.protocol.text import safe
from antiphon.transports.legacy.revisions import ask_params, notice

_log = logging.getLogger("antiphon.legacy")

KEY = "antiphon/key"
"""The member of `_meta` that holds the key of an ask: older revisions have none for it."""

_DENIED = -1
"""What clients answer when a person refused a completion."""

_END_SECONDS = 5.0
"""By when the SDK has cancelled the handlers of a session that it has closed."""


class RawResult(Result):
    """An answer as it came."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")


class SessionlessChannel(Channel):
    """The channel of a request whose client can be notified, but not asked."""

    def __init__(self, context: ServerRequestContext[Any, Any]) -> None:
        self._context = context

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification on the stream of this request."""
        context = self._context
        adapted = notice(method, params, context.protocol_version)
        message = Notification[dict[str, Any], str](method=method, params=adapted)
        session = cast("Any", context.session)
        await session.send_notification(message, related_request_id=context.request_id)

    async def release_stream(self) -> bool:
        """Close the stream of this request; the client reconnects for what follows."""
        close = self._context.close_sse_stream
        if close is None:
            return False
        await close()
        return True


class SessionChannel(SessionlessChannel):
    """The channel of a request on a session, whose client can be asked."""

    can_ask = True

    def __init__(self, context: ServerRequestContext[Any, Any], entropy: Entropy) -> None:
        super().__init__(context)
        self._entropy = entropy
        self._visits: dict[str, str] = {}

    async def ask(self, requests: Mapping[str, LegacyAsk]) -> Mapping[str, Any]:
        """Send the asks concurrently; `{"action": ...}` where one ended without an answer.

        Raises:
            UnsupportedForm: The client's revision has no such form. Nothing was sent.
        """
        sent = {key: self._sent(key, ask) for key, ask in requests.items()}
        if len(sent) == 1:
            ((key, request),) = sent.items()
            return {key: await self._one(request, requests[key].timeout)}
        async with asyncio.TaskGroup() as group:
            tasks = {
                key: group.create_task(self._one(request, requests[key].timeout))
                for key, request in sent.items()
            }
        return {key: task.result() for key, task in tasks.items()}

    def _sent(self, key: str, ask: LegacyAsk) -> Request[dict[str, Any], str]:
        id = ""
        if ask.params.get("mode") == "url":
            id = self._visits.setdefault(key, self._entropy(16).hex())
        params = ask_params(ask.method, ask.params, self._context.protocol_version, id)
        params["_meta"] = {KEY: key}
        return Request[dict[str, Any], str](method=ask.method, params=params)

    async def _one(self, request: Request[dict[str, Any], str], timeout: float | None) -> Any:
        try:
            result = await cast("Any", self._context.session).send_request(
                request,
                RawResult,
                request_read_timeout_seconds=timeout,
                metadata=ServerMessageMetadata(related_request_id=self._context.request_id),
            )
        except ValidationError:
            return None  # malformed: it is asked for again
        except MCPError as error:
            return await self._failed(request.method, error)
        return result.model_dump(by_alias=True, mode="json", exclude_unset=True)

    async def _failed(self, method: str, error: MCPError) -> Mapping[str, Any]:
        if error.code == REQUEST_TIMEOUT:
            return {"action": "expired"}
        if error.code == CONNECTION_CLOSED:
            # The session has ended and its handlers are being cancelled. A client may have sent
            # this code itself; then no cancellation comes, and its error counts as any other.
            await asyncio.sleep(_END_SECONDS)
        _log.info("the client refused an ask: %s, code %d", method, error.code)
        if error.code == _DENIED:
            return {"action": "decline"}
        if error.code in (METHOD_NOT_FOUND, INVALID_PARAMS) and method == "elicitation/create":
            return {"action": "unavailable"}
        if method == "elicitation/create":
            return {"action": "cancel"}
        raise ToolError(
            f"The client could not answer {method}: {safe(error.message, 500)} ({error.code})"
        )

    async def visited(self, key: str) -> None:
        """Tell the client that the visit it agreed to is complete."""
        id = self._visits.get(key)
        if id is not None:
            await self.notify("notifications/elicitation/complete", {"elicitationId": id})
