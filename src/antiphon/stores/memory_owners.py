"""Whose the redeemed rounds in memory are: how many each caller has, and a number for each of them.

A recorded round is bytes, of which there may be a million; a number in it says whose it is.
"""

from antiphon.core.quotas import Quota
from antiphon.stores.memory_expiry import share_of


class RoundOwners(Quota):
    """The quota of rounds. A caller who has some has a number."""

    __slots__ = ("_latest", "_names", "numbers", "plenty")

    def __init__(self, rounds: int) -> None:
        """Bound the rounds of all callers, and those of each by half of them."""
        super().__init__(rounds, share_of(rounds))
        self.plenty: int = self.each
        """Below so many rounds in all, nobody can have too many."""

        self.numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._latest = 0
        """The number that was given last; none is given twice."""

    def take(self, owner: str) -> int:
        """Count one more round of a caller, whether it fits or not; return the caller's number.

        `MemoryRounds.claim` does the same in place.
        """
        number = self.numbers.get(owner)
        if number is None:
            number = self.number(owner)
        self.add(owner, 1)
        return number

    def number(self, owner: str) -> int:
        """Return a number for a caller who has none."""
        number = self._latest = self._latest + 1
        self.numbers[owner] = number
        self._names[number] = owner
        self.by_owner[owner] = 0
        return number

    def give_back(self, number: int) -> None:
        """Count one round less of the caller with this number."""
        owner = self._names[number]
        self.remove(owner, 1)
        if owner not in self.by_owner:
            del self.numbers[owner]
            del self._names[number]
