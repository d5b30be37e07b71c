"""What the engine is given: time, dice, keys, store and limits, in one value. Decides nothing."""

from dataclasses import dataclass
from typing import Literal

from antiphon.core.limits import Limits
from antiphon.ports import Clock, Entropy, Store, Telemetry
from antiphon.seal.sealer import Sealer

Redeem = Literal["once", "strict", "off"]


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
    """Whether journals may go to the store: only when the author configured one (S6-1)."""

    telemetry: Telemetry | None = None
    expose_errors: bool = False
    """Whether the text of unexpected exceptions reaches the client."""

    @property
    def keeps_tasks(self) -> bool:
        """Whether the store keeps tasks."""
        return hasattr(self.store, "create_task")

    async def protect(self, data: bytes, place: str) -> bytes:
        """Seal what a durable store keeps; memory needs none."""
        if not self.store.durable:
            return data
        return await self.sealer.wrap(data, "at-rest", place.encode())

    async def protect_text(self, text: str, place: str) -> str:
        """Seal a text that a durable store keeps as text: it may say what nobody should read."""
        if not self.store.durable:
            return text
        return await self.sealer.wrap_text(text.encode(), "at-rest", place.encode())

    async def reveal_text(self, text: str, place: str) -> str:
        """Open what `protect_text` sealed."""
        if not self.store.durable:
            return text
        return (await self.sealer.unwrap_text(text, "at-rest", place.encode())).decode()

    async def reveal(self, data: bytes, place: str) -> bytes:
        """Open what `protect` sealed."""
        if not self.store.durable:
            return data
        return await self.sealer.unwrap(data, "at-rest", place.encode())
