"""What a server wants of a client, read and checked: the asks of a round or of a task. Pure.

Knows no flow: what is wrong is said in words, and the flow decides what that means.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from antiphon.core.capabilities import Capabilities, Capability, missing
from antiphon.core.methods import MAY_ASK

JsonObject: TypeAlias = Mapping[str, Any]

ASKABLE = MAY_ASK
"""The only methods that may be answered with a question (MRTR-S-01, MRTR-S-02)."""

MAX_ASKS = 64
"""Asks at one time: more than anybody could mean; a bound against a hostile server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAsk:
    """One question of the server, as it came."""

    key: str
    method: str
    params: JsonObject = field(default_factory=dict[str, Any])

    @property
    def needs(self) -> list[Capability]:
        """The client abilities that this ask presumes (CAP-01)."""
        if self.method == "roots/list":
            return ["roots"]
        if self.method == "elicitation/create":
            return ["url" if self.params.get("mode") == "url" else "form"]
        tools = "tools" in self.params or "toolChoice" in self.params
        return ["sampling", "sampling.tools"] if tools else ["sampling"]


def read_wants(
    body: JsonObject, method: str, declared: Capabilities
) -> tuple[str | None, tuple[PendingAsk, ...]] | str:
    """Read an `input_required` result: the token and the asks, or what is wrong (MRTR-C-14)."""
    if method not in ASKABLE:
        return f"{method} may not be answered with a question"
    token = body.get("requestState")
    if "requestState" in body and not isinstance(token, str):
        return "its requestState is not a string"
    asks = read_asks(body.get("inputRequests", {}))
    if isinstance(asks, str):
        return asks
    if not asks and token is None:
        return "it asks for nothing and gives no requestState"
    for ask in asks:
        if lacking := missing(declared, ask.needs):
            names = ", ".join(lacking)
            return f"ask {ask.key[:64]!r} needs {names}, which this client did not declare"
    return token, asks


def read_asks(entries: object) -> tuple[PendingAsk, ...] | str:
    """Read an `inputRequests` map, or say what is wrong with it."""
    if not isinstance(entries, dict):
        return "its inputRequests is not an object"
    entries = cast("dict[str, Any]", entries)
    if len(entries) > MAX_ASKS:
        return f"it asks {len(entries)} things at once, more than {MAX_ASKS}"
    asks: list[PendingAsk] = []
    for key, entry in entries.items():
        ask = read_ask(key, entry)
        if isinstance(ask, str):
            return f"ask {key[:64]!r} {ask}"
        asks.append(ask)
    return tuple(asks)


def read_ask(key: str, entry: object) -> PendingAsk | str:
    """Read one entry of `inputRequests`, or say what is wrong with it."""
    if not isinstance(entry, dict):
        return "is not an object"
    body = cast("dict[str, Any]", entry)
    method, params = body.get("method"), body.get("params")
    if params is None and method == "roots/list":
        params = {}
    if not isinstance(params, dict):
        return "has no params"
    params = cast("dict[str, Any]", params)
    match method:
        case "roots/list":
            fault = None
        case "elicitation/create":
            fault = _elicit_fault(params)
        case "sampling/createMessage":
            fault = _sample_fault(params)
        case _:
            return "is of an unknown kind"
    return fault or PendingAsk(key=key, method=cast("str", method), params=params)


def _elicit_fault(params: JsonObject) -> str | None:
    if not isinstance(params.get("message"), str):
        return "has no message"
    mode = params.get("mode", "form")
    if mode == "url":
        return None if isinstance(params.get("url"), str) else "has no url"
    if mode != "form":
        return "has an unknown mode"
    return None if isinstance(params.get("requestedSchema"), dict) else "has no requestedSchema"


def _sample_fault(params: JsonObject) -> str | None:
    if not isinstance(params.get("messages"), list):
        return "has no messages"
    tokens = params.get("maxTokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        return "has no maxTokens"
    return None
