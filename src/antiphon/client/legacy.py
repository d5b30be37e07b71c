"""The same answerer for old sessions: server-to-client requests become asks. Knows no transport.

On a legacy session the server waits while we answer. What the modern wire ends a call with is said
in the answer here: an error object, or `cancel` (LEGACY-20 to LEGACY-24).
"""

from collections.abc import Callable
from typing import Any, cast

import anyio
import mcp_types as types
from mcp.client.session import ClientRequestContext

from antiphon.client.answers import Answerer, abilities
from antiphon.client.asking import answer_all
from antiphon.client.errors import ClientError
from antiphon.client.flow_types import Failure
from antiphon.client.parse import UNNAMED
from antiphon.client.read_asks import MAX_ASKS, PendingAsk, read_ask
from antiphon.client.values import AnyAsk, view
from antiphon.core.capabilities import Capability
from antiphon.errors import AntiphonError

URL_REQUIRED = -32042
"""The legacy code of a call that needs visits first."""

USER_REJECTED = -1
"""The legacy code of a refused completion."""


KEY = "antiphon/key"
"""Where a server made with Antiphon names the ask; others give it no name."""


class Callbacks:
    """The three callbacks of the SDK's session over one answerer."""

    def __init__(
        self,
        answerer: Callable[[], Answerer | None],
        think: float,
        who: Callable[[], tuple[str, str]],
    ) -> None:
        """Take who answers, how long that may take, and who is asking."""
        self._answerer = answerer
        self._think = think
        self._who = who

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answer a form or a URL ask."""
        wire = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        need: Capability = "url" if wire.get("mode") == "url" else "form"
        if need not in abilities(self._answerer()):
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
        server, origin = self._who()
        params.pop("_meta", None)
        key = _key(method, params, dict(context.meta or {}))
        ask: AnyAsk = view(
            PendingAsk(key=key, method=method, params=params),
            server=server,
            origin=origin,
        )
        with anyio.fail_after(self._think):
            answers = await answer_all([ask], self._answerer())
        if not answers:
            raise ClientError("nothing was answered")
        return answers[ask.key]


async def visited(failure: Failure, answerer: Answerer | None, who: tuple[str, str]) -> bool:
    """Ask for consent to every page that a `-32042` names; true when all were agreed to.

    The server then does its part, and the call may be sent again (LEGACY-23).
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
        asks.append(view(ask, server=who[0], origin=who[1]))
    try:
        answers = await answer_all(asks, answerer)
    except AntiphonError:
        return False
    return all(answer["action"] == "accept" for answer in answers.values())


def _key(method: str, params: dict[str, Any], meta: dict[str, Any]) -> str:
    """Name an ask by what the server says, else by the short name of its kind."""
    key = meta.get(KEY)
    if isinstance(key, str) and key:
        return key
    if method == "elicitation/create":
        return "url" if params.get("mode") == "url" else UNNAMED
    return "sample" if method == "sampling/createMessage" else "roots"
