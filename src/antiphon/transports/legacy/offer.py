"""A server as legacy clients are offered it. Names no SDK."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.ports import Entropy
from antiphon.transports.dispatcher import Dispatcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What the handshake tells, and where calls go."""

    name: str
    version: str
    title: str | None
    instructions: str | None
    dispatcher: Dispatcher
    capabilities: Callable[[], Mapping[str, Any]]
    """What is offered at this moment; lists may still grow."""

    entropy: Entropy
