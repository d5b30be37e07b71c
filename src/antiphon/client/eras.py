"""The two eras: which one a server speaks, and what a legacy session needs.

Discovery comes first. Whatever does not show a modern server leads to the handshake, except a
failed connection, which shows nothing (VER-10 to VER-23).

In a legacy session the server sends requests and waits while we answer; they become asks for the
same answerer. Where a modern call would end without an answer, the server is sent an error object
or `cancel`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import anyio
import mcp_types as types
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)
from pydantic import ValidationError

from antiphon.client.answers import Answerer, RawAnswers, abilities, answer_all
from antiphon.client.asks import AnyAsk, view
from antiphon.client.errors import CannotConnect
from antiphon.client.fields import UNNAMED
from antiphon.client.flow_types import Failure
from antiphon.client.read_asks import MAX_ASKS, PendingAsk, read_ask
from antiphon.client.sdk_shim import LOST
from antiphon.errors import VERSION_UNSUPPORTED, AntiphonError
from antiphon.protocol.capabilities import Capability
from antiphon.protocol.request import Era

EraChoice = Literal["auto", "modern", "legacy"]

URL_REQUIRED = -32042
"""The legacy code of a call that needs visits first."""

USER_REJECTED = -1
"""The legacy code of a refused completion."""

KEY = "antiphon/key"
"""The `_meta` member in which an Antiphon server names the ask; others do not name it."""


@dataclass(slots=True)
class Eras:
    """The eras of known servers, by origin. Share one object between clients to probe once."""

    known: dict[str, Era] = field(default_factory=dict[str, Era])

    def forget(self, origin: str) -> None:
        """Probe this origin again next time."""
        self.known.pop(origin, None)


async def negotiate(session: ClientSession, choice: EraChoice, eras: Eras, origin: str) -> Era:
    """Agree on an era and a version, and prepare the session for it."""
    era: EraChoice = choice if choice != "auto" else eras.known.get(origin, "auto")
    found = await _negotiate(session, era, forced=choice != "auto")
    if origin:
        eras.known[origin] = found
    return found


async def _negotiate(session: ClientSession, era: EraChoice, *, forced: bool) -> Era:
    if era == "legacy":
        try:
            return await _handshake(session)
        except MCPError as error:
            if forced or error.code == LOST:
                raise
    supported = await _probe(session, LATEST_MODERN_VERSION)
    # The version just sent may be named as supported; it is tried once more then.
    version = next((v for v in reversed(MODERN_PROTOCOL_VERSIONS) if v in (supported or ())), None)
    if version is not None:
        supported = await _probe(session, version)
    if supported is None:
        return "modern"
    if forced and era == "modern":
        raise CannotConnect(
            "the server does not speak protocol 2026-07-28, and the era auto was not chosen"
        )
    return await _fall_back(session, supported)


async def _fall_back(session: ClientSession, supported: Sequence[str]) -> Era:
    if supported and not any(version in HANDSHAKE_PROTOCOL_VERSIONS for version in supported):
        raise CannotConnect(
            f"no protocol version in common: the server speaks {', '.join(supported)}"
        )
    try:
        return await _handshake(session)
    except MCPError as error:
        # A server that starts slowly: discovery timed out, but it answers now.
        modern = error.code == VERSION_UNSUPPORTED
        if modern and await _probe(session, LATEST_MODERN_VERSION) is None:
            return "modern"
        raise


async def _probe(session: ClientSession, version: str) -> Sequence[str] | None:
    """Discover the server. None: it is modern and the session is ready; else its versions."""
    try:
        raw = await session.send_discover(version)
    except MCPError as error:
        if error.code == LOST:
            raise
        return _supported(error) if error.code == VERSION_UNSUPPORTED else ()
    try:
        result = types.DiscoverResult.model_validate(raw)
    except ValidationError:
        return ()
    if not any(version in result.supported_versions for version in MODERN_PROTOCOL_VERSIONS):
        return ()
    session.adopt(result)
    return None


def _supported(error: MCPError) -> Sequence[str]:
    data = cast("object", error.error.data)
    listed = cast("dict[str, Any]", data).get("supported") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        return ()
    return [version for version in cast("list[object]", listed) if isinstance(version, str)]


async def _handshake(session: ClientSession) -> Era:
    await session.initialize()
    return "legacy"


# --- legacy sessions ----------------------------------------------------------------------------


class SessionCallbacks:
    """The three callbacks of the SDK's session over one answerer."""

    def __init__(self, answerer: Answerer | None, timeout: float, origin: str) -> None:
        """Take the answerer, the seconds allowed for an answer, and the server's address."""
        self._answerer = answerer
        self._timeout = timeout
        self._origin = origin

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answer a form or a URL ask."""
        wire = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        need: Capability = "url" if wire.get("mode") == "url" else "form"
        if need not in abilities(self._answerer):
            return types.ErrorData(code=-32602, message=f"this client has no {need} elicitation")
        try:
            answer = await self._answer("elicitation/create", wire, context)
        except (AntiphonError, TimeoutError):
            return types.ElicitResult(action="cancel")
        return types.ElicitResult.model_validate(answer)

    async def sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        """Answer a sampling ask."""
        wire = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        try:
            answer = await self._answer("sampling/createMessage", wire, context)
        except (AntiphonError, TimeoutError):
            return types.ErrorData(code=USER_REJECTED, message="the completion was refused")
        if isinstance(answer.get("content"), list):
            return types.CreateMessageResultWithTools.model_validate(answer)
        return types.CreateMessageResult.model_validate(answer)

    async def roots(self, context: ClientRequestContext) -> types.ListRootsResult | types.ErrorData:
        """Answer a roots ask."""
        try:
            answer = await self._answer("roots/list", {}, context)
        except (AntiphonError, TimeoutError):
            return types.ErrorData(code=-32601, message="this client has no roots")
        return types.ListRootsResult.model_validate(answer)

    async def _answer(
        self, method: str, params: dict[str, Any], context: ClientRequestContext
    ) -> dict[str, Any]:
        params.pop("_meta", None)
        key = _key(method, params, dict(context.meta or {}))
        if isinstance(self._answerer, RawAnswers):
            with anyio.fail_after(self._timeout):
                return dict(await self._answerer.raw(method, params, key))
        info = context.session.server_info
        ask: AnyAsk = view(
            PendingAsk(key=key, method=method, params=params),
            server=info.name if info else "",
            origin=self._origin,
        )
        with anyio.fail_after(self._timeout):
            answers = await answer_all([ask], self._answerer)
        return answers[ask.key]


async def pages_accepted(
    failure: Failure, answerer: Answerer | None, *, server: str, origin: str
) -> bool:
    """Ask for consent to every page that a `-32042` names; return whether all were accepted.

    Then the call is sent again.
    """
    data: object = failure.data
    listed = cast("dict[str, Any]", data).get("elicitations") if isinstance(data, dict) else None
    if not isinstance(listed, list) or not 0 < len(cast("list[Any]", listed)) <= MAX_ASKS:
        return False
    asks: list[AnyAsk] = []
    for number, entry in enumerate(cast("list[Any]", listed)):
        ask = read_ask(f"url-{number}", {"method": "elicitation/create", "params": entry})
        if isinstance(ask, str) or ask.params.get("mode") != "url":
            return False
        asks.append(view(ask, server=server, origin=origin))
    try:
        answers = await answer_all(asks, answerer)
    except AntiphonError:
        return False
    return all(answer["action"] == "accept" for answer in answers.values())


def _key(method: str, params: dict[str, Any], meta: dict[str, Any]) -> str:
    """Return the name that the server gave an ask, else the short name of its kind."""
    key = meta.get(KEY)
    if isinstance(key, str) and key:
        return key
    if method == "elicitation/create":
        return "url" if params.get("mode") == "url" else UNNAMED
    return "sample" if method == "sampling/createMessage" else "roots"
