"""Carriers: who brings ready tasks to workers. The engine says when; the task's row says who.

Whoever commits a change that makes a task ready has the carrier call it, after the commit. A call
may be lost, may come twice and may come late: the row decides who may run (see `Tasks.claim_run`),
and workers look for what nobody came for (see `Tasks.overdue`).
"""

from asyncio import Event
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

import msgspec

from antiphon.ports.tasks import Due, ServedTools, TaskRow


def caller_of(owner: str) -> str:
    """Return the name of an owner as carriers see it: a digest, so that an engine can tell callers
    apart. It is not secret: whoever sees it can check a guess of who it is.
    """
    return blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class Space(msgspec.Struct, frozen=True):
    """What a worker can take on."""

    runs: int
    """Tasks that may be claimed at once. One at a time where tools or callers have limits of their
    own: each claim may use one up."""

    busy_tools: Sequence[str] = ()
    """Tools of which it runs as many tasks as it may."""

    busy_owners: Sequence[str] = ()
    """Owners of whom it runs as many tasks as it may."""

    served: ServedTools | None = None
    """The tools that it has, with their versions; None: all."""

    large_owners: Sequence[str] = ()
    """Owners who hold so many places that others go first."""


class RunTask(Protocol):
    """Runs tasks in a worker; what a carrier hands called tasks to."""

    places: int
    """Tasks that it runs at a time."""

    lease: float
    """Seconds for which a claimed task stays claimed without a renewal."""

    stopping: Event
    """Set when the worker ends: then a carrier takes no more, and returns when all that it has
    handed over came back."""

    async def __call__(self, due: Due, *, seize: int = 0) -> Due | None:
        """Run a called task once, to its end.

        Returns what is to be called again, after its `after` seconds: there was no place for it,
        or it came too early. None: nothing more to do for this call.

        Args:
            due: The called task.
            seize: How many times this call was handed over before, to workers of which the carrier
                knows that they are dead or cut off: their leases are not waited for.

        Raises:
            StoreError: The store failed; the same call is to be brought again.
        """
        ...

    def space(self) -> Space:
        """Return what can be taken on now. A carrier that hands calls over may do without: it is
        for those that claim tasks themselves, or leave calls to workers with free places.
        """
        ...

    async def start(self, rows: Sequence[TaskRow], *, claimed_at: float) -> None:
        """Run tasks that the carrier has claimed, in the background; give them back at the end.

        Args:
            rows: The claimed tasks.
            claimed_at: The time of the event loop before they were claimed.
        """
        ...

    async def freed(self) -> None:
        """Return when a place was freed since `space` was asked for, or when the worker ends."""
        ...


class Carrier(Protocol):
    """Brings called tasks to workers, at least once. Who may run is never its decision."""

    async def open(self) -> None:
        """Connect. Tried again with growing pauses while it raises."""
        ...

    async def close(self) -> None:
        """Disconnect; also after `open` has failed."""
        ...

    async def call(self, due: Due) -> None:
        """Have a task run, in `due.after` seconds. Raises when that was not noted."""
        ...

    async def carry(self, run: RunTask) -> None:
        """In a worker: hand each called task to `run`, and again until it has come back.

        Returns after `run.stopping` was set. Raises when the connection is lost for good: it is
        then closed, opened and carried on with.
        """
        ...
