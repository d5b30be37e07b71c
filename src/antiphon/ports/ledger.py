"""The ledger: which rounds were redeemed, and what came of them."""

from typing import Protocol, TypeAlias

import msgspec

from antiphon.ports.tasks import NewTask


class About(msgspec.Struct, frozen=True, gc=False):
    """What operators are shown of a call besides its id."""

    tool: str = ""
    caller: str = ""
    """The owner of the call, as `Principal.owner` gives it."""


NOTHING_KNOWN = About()


class Claimed(msgspec.Struct, frozen=True):
    """The round is ours to run, under this fencing token."""

    fence: int
    prefix: bytes | None = None
    """What an earlier attempt had learned before its latest effect."""


class Recorded(msgspec.Struct, frozen=True):
    """The round has ended; this is its outcome."""

    outcome: bytes


class Running(msgspec.Struct, frozen=True):
    """Another holder runs the round and its lease is good."""


class Spent(msgspec.Struct, frozen=True):
    """The token is worth nothing any more."""

    reason: str
    """For the log: `other-answers`, `evicted`, `tries`, `released`, `superseded`, or `expired`."""


Claim: TypeAlias = Claimed | Recorded | Running | Spent


class Ledger(Protocol):
    """Tokens redeemed once. A round is named by its call and its number.

    A row lives for the `ttl` it was claimed with, for as long as a good lease holds it, and, once
    an effect was begun under it, for as long as that effect, until the round is recorded.
    """

    async def claim(
        self,
        call: str,
        round: int,
        answers: bytes,
        *,
        lease: float,
        ttl: float,
        tries: int,
        about: About = NOTHING_KNOWN,
    ) -> Claim:
        """Claim a round for running it.

        First claim of this round, or the last holder released it or lost its lease, with the same
        `answers` digest and at most `tries` failures: `Claimed` with a fence greater than every
        earlier one of this round. Other answers: `Spent`. Recorded: `Recorded`; its body evicted:
        `Spent`. Held by another with a good lease: `Running`. Raises the mark of the call to
        `round`; a round below the mark that has no row of its own is `Spent`.

        `ttl` is how long the token is still good. When it is not positive, only a round that was
        claimed before and has not been recorded can be claimed; every other is `Spent("expired")`.

        Raises:
            StoreFull: A bounded store has no space for another row.
        """
        ...

    async def renew(self, call: str, round: int, fence: int, *, lease: float) -> bool:
        """Extend the lease; False if the fence is lost."""
        ...

    async def record(
        self,
        call: str,
        round: int,
        fence: int,
        outcome: bytes,
        *,
        ttl: float,
        final: bool = False,
        task: "NewTask | None" = None,
    ) -> bool:
        """Record the outcome and end the claim, in one step; False if the fence is lost.

        The outcome is kept for `ttl` seconds for duplicates. What only this round and earlier ones
        needed (their segments) is freed in the same step. With `final` the call has ended, and
        `end_call` happens in the same step too. With `task`, so is the task kept that the round
        made.
        """
        ...

    async def release(
        self, call: str, round: int, fence: int, *, spend: bool = False, counts: bool = True
    ) -> None:
        """Give the round back for another try, or spend it. A lost fence is ignored.

        `counts` says that the run failed: only such releases count against `tries`.
        """
        ...

    async def settled(self, call: str, round: int, *, timeout: float) -> None:
        """Return when the round may have left `Running`, or after `timeout` seconds."""
        ...

    async def end_call(self, call: str, *, ttl: float, round: int | None = None) -> None:
        """Free what a call that has ended leaves behind: its segments now, its effects in `ttl`.

        Effects with a `window` belong to more than one call and stay. With `round`, the call has
        ended in that round, and nothing is freed if the ledger knows a later one: somebody has
        taken the call over.
        """
        ...
