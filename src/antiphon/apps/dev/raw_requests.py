"""Requests that no well-behaved client would send: made of one that was sent, and sent as given."""

from collections.abc import Mapping
from typing import Any, cast

import httpx2
import msgspec

from antiphon.apps.dev.timeline import Round
from antiphon.apps.dev.wire import SESSION, Exchange, as_object, http_client
from antiphon.protocol.text import preview

WITHIN = 20.0
"""Seconds for a reply."""

_HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


class RawReply(msgspec.Struct, frozen=True):
    """What came back."""

    status: int
    message: dict[str, Any]

    @property
    def result(self) -> Any:
        """The result; None without one."""
        return self.message.get("result")

    @property
    def error(self) -> Any:
        """The JSON-RPC error; None without one."""
        return self.message.get("error")

    @property
    def code(self) -> int:
        """Of the error; 0 without one."""
        error = self.error
        return int(cast("dict[str, Any]", error).get("code", 0)) if isinstance(error, dict) else 0

    @property
    def ok(self) -> bool:
        """Whether there is a result."""
        return isinstance(self.result, dict)

    @property
    def members(self) -> dict[str, Any]:
        """The members of the result; empty without one."""
        return cast("dict[str, Any]", self.result) if self.ok else {}

    @property
    def token(self) -> str:
        """The token of the reply; empty without one."""
        return str(self.members.get("requestState") or "")

    @property
    def asks(self) -> list[str]:
        """The keys of what is asked."""
        return list(cast("dict[str, Any]", self.members.get("inputRequests") or {}))

    @property
    def words(self) -> str:
        """The reply, in words."""
        error = self.error
        if isinstance(error, dict):
            said = cast("dict[str, Any]", error)
            return f"refused, {said.get('code')}: {preview(str(said.get('message', '')), 300)}"
        if not self.ok:
            return f"HTTP {self.status}" if self.status else "no reply"
        if self.asks:
            return f"asks {', '.join(self.asks)}"
        texts = [
            str(part.get("text", ""))
            for part in cast("list[dict[str, Any]]", self.members.get("content") or [])
        ]
        kind = "error result" if self.members.get("isError") else "result"
        return f"{kind}: {preview(' '.join(texts), 300)}" if texts else kind


async def raw_request(
    url: str, of: Round, params: Mapping[str, Any], exchanges: list[Exchange]
) -> RawReply:
    """Send the request of a round with other params, once."""
    message = {**of.exchange.message, "id": "disturbed", "params": dict(params)}
    reply, _ = await post(url, message, {**_HEADERS, **of.exchange.headers}, exchanges)
    return reply


async def post(
    url: str,
    message: Mapping[str, Any],
    headers: Mapping[str, str],
    exchanges: list[Exchange] | None = None,
    *,
    verb: str = "POST",
) -> tuple[RawReply, str]:
    """Send one message as given; return the first reply that matters, and the session's id.

    Of a stream that is the response, or the first request of the server.
    """
    content = msgspec.json.encode(message) if message else b""
    kept: list[Exchange] = [] if exchanges is None else exchanges
    try:
        async with (
            http_client(kept, _nothing) as client,
            client.stream(
                verb, url, content=content, headers={**_HEADERS, **headers}, timeout=WITHIN
            ) as response,
        ):
            session = response.headers.get(SESSION, "")
            return RawReply(response.status_code, await _first(response)), session
    except httpx2.HTTPError:
        return RawReply(0, {}), ""


async def _first(response: httpx2.Response) -> dict[str, Any]:
    if "text/event-stream" not in response.headers.get("content-type", ""):
        return as_object(await response.aread())
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            found = as_object(line.removeprefix("data:").strip().encode())
            if "id" in found:
                return found
    return {}


def _nothing() -> None:
    """Nobody is told."""


def answers_for(reply: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return some answer to everything that a reply asks."""
    result = cast("dict[str, Any]", (reply or {}).get("result") or {})
    asks = cast("dict[str, dict[str, Any]]", result.get("inputRequests") or {})
    return {key: _some_answer(str(ask.get("method"))) for key, ask in asks.items()}


def _some_answer(method: str) -> dict[str, Any]:
    if method == "roots/list":
        return {"roots": []}
    if method == "sampling/createMessage":
        text = {"type": "text", "text": "something"}
        return {"role": "assistant", "content": text, "model": "nobody", "stopReason": "endTurn"}
    return {"action": "decline"}
