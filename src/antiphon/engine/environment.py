"""What the engine is given: time, randomness, keys, store and limits, in one value."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from antiphon.core.inbox import InboxPlace
from antiphon.core.limits import Limits
from antiphon.engine.store_trouble import StoreTrouble
from antiphon.errors import TokenRefused
from antiphon.ports import Clock, Entropy, Store, Telemetry
from antiphon.seal.sealer import Sealer, from_text, to_text

Redeem = Literal["once", "strict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The outside of a server."""

    sealer: Sealer
    store: Store
    limits: Limits
    clock: Clock
    entropy: Entropy
    meta: bytes
    """The closing `_meta` of every result."""

    redeem: Redeem = "once"
    spill: bool = False
    """Whether journals may go to the store: only when the author configured one."""

    telemetry: Telemetry | None = None
    expose_errors: bool = False
    """Whether the text of unexpected exceptions reaches the client."""

    trouble: StoreTrouble = field(default_factory=lambda: StoreTrouble(time.monotonic))
    """What is said when the store fails."""

    inbox: InboxPlace | None = None
    """Where people decide who are not the client; None when the server has no console."""

    background: "set[asyncio.Task[Any]]" = field(default_factory=set["asyncio.Task[Any]"])
    """What goes on after a reply; a task that nobody refers to may be collected."""

    @property
    def keeps_tasks(self) -> bool:
        """Whether the store keeps tasks."""
        return hasattr(self.store, "create_task")

    async def protect(self, data: bytes, place: str) -> bytes:
        """Seal what a durable store keeps; memory needs no seal."""
        if not self.store.durable:
            return data
        sealed = self.sealer.protect(data, place)
        return sealed if isinstance(sealed, bytes) else await sealed

    async def reveal(self, data: bytes, place: str) -> bytes:
        """Open what `protect` sealed."""
        if not self.store.durable:
            return data
        plain = self.sealer.reveal(data, place)
        return plain if isinstance(plain, bytes) else await plain

    async def protect_text(self, text: str, place: str) -> str:
        """Seal a text that a durable store keeps as text: it may say what nobody should read."""
        if not self.store.durable:
            return text
        return to_text(await self.protect(text.encode(), place))

    async def reveal_text(self, text: str, place: str) -> str:
        """Open what `protect_text` sealed."""
        if not self.store.durable:
            return text
        try:
            sealed = from_text(text)
        except ValueError:
            raise TokenRefused("malformed") from None
        return (await self.reveal(sealed, place)).decode()
