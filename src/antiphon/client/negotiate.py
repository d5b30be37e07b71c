"""Finds out which era a server belongs to, and remembers it. Knows no call.

Discovery first; anything that is not evidence of a modern server leads to the handshake, except a
failed connection, which is evidence of nothing (VER-10 to VER-23).
"""

from dataclasses import dataclass, field
from typing import Any, Literal, cast

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)
from pydantic import ValidationError

from antiphon.client.errors import CannotConnect
from antiphon.client.http import LOST
from antiphon.core.request import Era
from antiphon.errors import VERSION_UNSUPPORTED

EraChoice = Literal["auto", "modern", "legacy"]


@dataclass(slots=True)
class Eras:
    """What is known about servers, by origin. Give one object to several clients to share it."""

    known: dict[str, Era] = field(default_factory=dict[str, Era])

    def forget(self, origin: str) -> None:
        """Probe this origin anew next time: the assumption broke."""
        self.known.pop(origin, None)


async def negotiate(session: ClientSession, *, choice: EraChoice, eras: Eras, origin: str) -> Era:
    """Agree on an era and a version, and prepare the session for it.

    Raises:
        CannotConnect: No version in common, or the handshake failed.
        MCPError: The connection failed (code `LOST`).
    """
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
    version: str | None = LATEST_MODERN_VERSION
    refusal: _Refusal | None = None
    for _ in range(2):
        refusal = await _probe(session, version)
        if refusal is None:
            return "modern"
        version = _mutual(refusal)
        if version is None:
            break
    if forced and era == "modern":
        raise CannotConnect(
            "the server does not speak protocol 2026-07-28; use era='auto' to fall back"
        )
    if refusal and refusal.only_modern:
        raise CannotConnect(
            f"no protocol version in common: the server speaks {', '.join(refusal.supported)}"
        )
    return await _fall_back(session)


@dataclass(frozen=True, slots=True)
class _Refusal:
    supported: tuple[str, ...] = ()

    @property
    def only_modern(self) -> bool:
        return bool(self.supported) and not any(
            version in HANDSHAKE_PROTOCOL_VERSIONS for version in self.supported
        )


def _mutual(refusal: _Refusal) -> str | None:
    # The version just sent may be named again; trying once more is right then too (AMB-10).
    mutual = [version for version in MODERN_PROTOCOL_VERSIONS if version in refusal.supported]
    return mutual[-1] if mutual else None


async def _probe(session: ClientSession, version: str | None) -> _Refusal | None:
    """Ask the server what it is; nothing means that it is modern and the session is ready."""
    try:
        raw = await session.send_discover(version or LATEST_MODERN_VERSION)
    except MCPError as error:
        if error.code == LOST:
            raise
        return _Refusal(_supported(error) if error.code == VERSION_UNSUPPORTED else ())
    try:
        result = types.DiscoverResult.model_validate(raw)
    except ValidationError:
        return _Refusal()
    if not any(version in result.supported_versions for version in MODERN_PROTOCOL_VERSIONS):
        return _Refusal()
    session.adopt(result)
    return None


def _supported(error: MCPError) -> tuple[str, ...]:
    data = cast("object", error.error.data)
    listed = cast("dict[str, Any]", data).get("supported") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        return ()
    return tuple(version for version in cast("list[object]", listed) if isinstance(version, str))


async def _handshake(session: ClientSession) -> Era:
    await session.initialize()
    return "legacy"


async def _fall_back(session: ClientSession) -> Era:
    try:
        return await _handshake(session)
    except MCPError as error:
        # A slow start: the probe timed out here and was answered there (AMB-14).
        if error.code == VERSION_UNSUPPORTED and await _probe(session, None) is None:
            return "modern"
        raise
