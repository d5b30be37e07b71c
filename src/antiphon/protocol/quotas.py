"""How much callers may make a process keep: shares, counted in one place. Does no I/O but logging.

A `Quota` bounds one amount, in pieces or in bytes: in all, for each caller, and for all callers
without authentication together, who may use half of it and no more. So nobody can take what the
others need. An `Allowance` bounds things of one kind by two quotas: by their number, and by their
bytes on the account that all kinds of one process share.
"""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from antiphon.errors import Unavailable
from antiphon.protocol.failures import OccasionalLog
from antiphon.protocol.limits import Limits

_log = logging.getLogger("antiphon")

ANONYMOUS = "anonymous "
"""How the names of callers without authentication begin; see `Principal.owner`."""

OBJECT_FACTOR = 8
"""Bytes in memory for each byte of JSON, about the worst that real values come to."""

_BYTES = "bytes, Limits(held_bytes=..., held_bytes_per_principal=...)"

REFUSED = (
    "the server keeps as much for this caller as it may: end a call, a session or a subscription, "
    "or try again later"
)


class Quota:
    """One bounded amount and who uses how much of it."""

    __slots__ = ("by_owner", "each", "most", "together", "used")

    def __init__(self, most: int, each: int) -> None:
        """Bound an amount.

        Args:
            most: In all.
            each: For one authenticated caller.
        """
        self.most: int = most
        self.each: int = min(each, most)
        self.together: int = max(self.each, most - most // 2)
        """For all callers without authentication together."""

        self.used: int = 0
        """How much is used in all."""

        self.by_owner: dict[str, int] = {}
        """How much of it each caller uses; callers that use nothing are not in it."""

    def used_by(self, owner: str) -> int:
        """Return how much one caller uses."""
        return self.by_owner.get(owner, 0)

    def share(self, owner: str) -> int:
        """Return how much one caller may use. Nobody in particular may use everything."""
        if not owner:
            return self.most
        return self.together if is_anonymous(owner) else self.each

    def fits(self, owner: str, amount: int) -> bool:
        """Return whether a caller may use so much more."""
        used, held = self.used + amount, self.by_owner.get(owner, 0) + amount
        return used <= self.most and held <= self.share(owner)

    def add(self, owner: str, amount: int) -> None:
        """Count what is used, whether it fits or not."""
        self.used += amount
        self.by_owner[owner] = self.by_owner.get(owner, 0) + amount

    def remove(self, owner: str, amount: int) -> None:
        """Count what is used no more."""
        self.used -= amount
        left = self.by_owner[owner] - amount
        if left:
            self.by_owner[owner] = left
        else:
            del self.by_owner[owner]


class Allowance:
    """Things of one kind: bounded by their number, and by their bytes on a common account."""

    __slots__ = ("_bytes", "_kind", "_pieces", "_refusals")

    def __init__(
        self,
        kind: str,
        pieces: Quota,
        held: Quota,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bound one kind.

        Args:
            kind: What is counted, with the settings that bound it, for the log.
            pieces: The quota of their number.
            held: The common account, in bytes.
            clock: For the rate of the log.
        """
        self._kind = kind
        self._pieces = pieces
        self._bytes = held
        self._refusals = OccasionalLog(_log, clock)

    def __len__(self) -> int:
        """Count the things that are kept."""
        return self._pieces.used

    def of(self, owner: str) -> int:
        """Count the things of one caller."""
        return self._pieces.used_by(owner)

    def take(self, owner: str, size: int) -> bool:
        """Count one more; False when it does not fit."""
        if not (self._pieces.fits(owner, 1) and self._bytes.fits(owner, size)):
            return False
        self._pieces.add(owner, 1)
        self._bytes.add(owner, size)
        return True

    def require(self, owner: str, size: int) -> None:
        """Count one more.

        Raises:
            Unavailable: It does not fit. The log says which bound was met.
        """
        if not self.take(owner, size):
            self.log_refusal(owner, size)
            raise Unavailable(REFUSED)

    def grow(self, owner: str, size: int) -> None:
        """Count more bytes of a thing that is kept already.

        Raises:
            Unavailable: They do not fit. The log says which bound was met.
        """
        if not self._bytes.fits(owner, size):
            self.log_refusal(owner, size)
            raise Unavailable(REFUSED)
        self._bytes.add(owner, size)

    def change(self, owner: str, size: int) -> bool:
        """Count bytes of a thing that is kept already, more or less; False when it is too much."""
        self._bytes.add(owner, size)
        return self._bytes.fits(owner, 0)

    def log_refusal(self, owner: str, size: int) -> None:
        """Log which bound one more would break."""
        quota, amount, what = self._pieces, 1, self._kind
        if quota.fits(owner, amount):
            quota, amount, what = self._bytes, size, _BYTES
        own, share = quota.used_by(owner) + amount, quota.share(owner)
        if own > share:
            cause = f"{owner.strip()!r} would hold {own} of at most {share} {what}"
        else:
            cause = f"all callers hold {quota.used} of at most {quota.most} {what}"
        self._refusals.warning(f"no more {self._kind}: {cause}")

    def give_back(self, owner: str, size: int) -> None:
        """Count one less; `size` is what it was taken with."""
        self._pieces.remove(owner, 1)
        self._bytes.remove(owner, size)


class Holdings:
    """What one process keeps for callers between their requests."""

    __slots__ = ("legacy_calls", "listeners", "parked", "sessions")

    def __init__(self, limits: Limits) -> None:
        """Bound each kind by itself, and all of them together in bytes."""
        held = Quota(limits.held_bytes, limits.held_bytes_per_principal)

        def kind(name: str, setting: str, most: int, each: int) -> Allowance:
            text = f"{name}, Limits({setting}=..., {setting}_per_principal=...)"
            return Allowance(text, Quota(most, each), held)

        self.sessions: Allowance = kind(
            "legacy sessions", "sessions", limits.sessions, limits.sessions_per_principal
        )
        self.legacy_calls: Allowance = kind(
            "legacy calls", "legacy_calls", limits.legacy_calls, limits.legacy_calls_per_principal
        )
        self.parked: Allowance = kind(
            "parked handlers", "parked", limits.parked, limits.parked_per_principal
        )
        self.listeners: Allowance = kind(
            "listen streams", "listeners", limits.listeners, limits.listeners_per_principal
        )


def is_anonymous(owner: str) -> bool:
    """Whether the name of an owner stands for callers without authentication."""
    # Three parts make an authenticated name, whatever the first of them is.
    return owner.startswith(ANONYMOUS) and owner.count(" ") == 1


def weight(value: Any) -> int:
    """Return about how many bytes of memory a value from JSON takes."""
    return OBJECT_FACTOR * json_size(value)


def json_size(value: Any) -> int:
    """Return how many bytes a value from JSON takes as JSON."""
    try:
        return len(msgspec.json.encode(value))
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can hold escaped
        return len(json.dumps(value))
