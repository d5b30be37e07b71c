"""A bank that keeps its books by idempotency key, and whose replies get lost."""

import asyncio
from collections.abc import Callable
from typing import Any

from antiphon import NotDone, OutcomeUnknown


class _Reply:
    def __init__(self, status: int) -> None:
        self.status_code = status


class BadGateway(Exception):
    """What HTTP libraries raise for a reply with status 502."""

    def __init__(self) -> None:
        super().__init__("502 Bad Gateway")
        self.response = _Reply(502)


class ReadTimeout(Exception):
    """Named and placed like the exception of an HTTP library."""

    __module__ = "httpx"


class GarbledReply(Exception):
    """An exception that nobody but its author knows."""


TROUBLES: dict[str, Callable[[], BaseException]] = {
    "timeout": lambda: TimeoutError("no reply"),
    "unknown": lambda: OutcomeUnknown("no reply"),
    "reset": lambda: ConnectionResetError("reset by peer"),
    "bad gateway": BadGateway,
    "library": ReadTimeout,
    "cancelled": asyncio.CancelledError,
    "garbled": lambda: GarbledReply("<html>"),
    "parsing": lambda: KeyError("receipt"),
}
"""What the caller of the bank sees when a payment was made and its reply was lost."""


class Bank:
    """Pays once for each idempotency key; loses as many replies as it is told to."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.asked: list[str] = []
        self.loses = 0
        self.trouble = TROUBLES["timeout"]
        self.before: Callable[[], object] = lambda: None
        """Called before a payment is booked; if it returns True, the request never arrives."""

        self.after: Callable[[], object] = lambda: None
        """Called after a payment was booked, before the reply."""

    async def pay(self, number: int, idempotency_key: str) -> str:
        """Pay; the receipt names the payment."""
        if self.before():
            return "nobody hears this"
        if idempotency_key not in self.paid:
            self.paid.append(idempotency_key)
        self.after()
        if self.loses:
            self.loses -= 1
            raise self.trouble()
        return self._receipt(idempotency_key)

    async def find(self, number: int, idempotency_key: str) -> str:
        """Look a payment up by its key."""
        self.asked.append(idempotency_key)
        if idempotency_key not in self.paid:
            raise NotDone("no such payment")
        return self._receipt(idempotency_key)

    def _receipt(self, key: str) -> str:
        return f"P-{self.paid.index(key) + 1}"


HOUR = 3600.0


def option_sets(bank: Bank) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return options of the tool and of the effect, by name."""
    shared = {"scope": "arguments", "window": HOUR}
    return {
        "plain": ({}, {}),
        "verify": ({}, {"verify": bank.find}),
        "retry": ({}, {"retry": True}),
        "adopt and verify": ({"restarts": "adopt"}, {"verify": bank.find}),
        "scope": ({}, shared),
        "scope and verify": ({}, {**shared, "verify": bank.find}),
    }


OPTIONS = list(option_sets(Bank()))
