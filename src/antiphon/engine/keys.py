"""The names of asks, effects and memos: what an author may call one, and what is derived (S4-3).

Owns the form of keys and the count of those that a run has derived. Knows no journal and no ask.
"""

import re
from collections.abc import Mapping

from antiphon.errors import AmbiguousKey, HandlerError

_ORDINAL = re.compile(r"-\d+$|^\d+$")
_MAX_KEY = 128


def check_key(key: str) -> str:
    """Check a key that an author gave."""
    if not key or len(key) > _MAX_KEY or not key.isprintable():
        raise HandlerError(f"a key is a short printable text of 1 to {_MAX_KEY} characters")
    if _ORDINAL.search(key):
        raise HandlerError(
            f"key {key!r} is a number or ends in one after a dash: that form is kept for keys the "
            "framework derives. Name what it is about."
        )
    return key


class Keys:
    """The keys that one run has derived so far."""

    __slots__ = ("_branches", "_counts")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._branches: set[str] = set()

    def __contains__(self, base: str) -> bool:
        """Tell whether a key was derived from this base."""
        return base in self._counts or base in self._branches

    def derive(self, base: str, *, in_branch: bool) -> str:
        """Name something after its base; the second of that name gets a number.

        Raises:
            AmbiguousKey: Branches run in any order, so that a number would say nothing.
        """
        if in_branch:
            if base in self._branches or base in self._counts:
                raise AmbiguousKey(base)
            self._branches.add(base)
            return base
        if base in self._branches:
            raise AmbiguousKey(base)
        number = self._counts.get(base, 0) + 1
        self._counts[base] = number
        return base if number == 1 else f"{base}-{number}"

    def take_all(self, counts: Mapping[str, int]) -> None:
        """Count keys as derived: of code that was run in an earlier round and is not now."""
        for base, number in counts.items():
            self._counts[base] = max(number, self._counts.get(base, 0))

    def take(self, key: str) -> None:
        """Count one key as derived, with those that stand before it."""
        base, dash, number = key.rpartition("-")
        self.take_all({base: int(number)} if dash and number.isdecimal() else {key: 1})

    def taken(self) -> dict[str, int]:
        """Tell how many keys were derived from each base."""
        return dict(self._counts)
