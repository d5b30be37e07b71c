"""Redeeming a token once: claim, run, record; duplicates wait or get what was recorded (S3).

Owns the flights of this process (rounds that are running now) and their leases. Knows no handler:
what a claimed round does is given as a coroutine.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from antiphon.core.journal import Entry
from antiphon.errors import StoreError, TokenRefused, Unavailable
from antiphon.ports import Claim, Mine, Recorded, Running, Spent
from antiphon.seal.claims import decode_journal
from antiphon.server.call import Call
from antiphon.server.replies import Reply, from_bytes, to_bytes
from antiphon.server.services import Services
from antiphon.server.signals import Abandoned

Work = Callable[[int, list[Entry]], Awaitable[Reply]]
"""Run the claimed round under a fence, after what an earlier attempt had learned."""


class Flight:
    """A round that is running in this process."""

    __slots__ = ("answers", "channel", "done", "fence", "key", "waiters")

    def __init__(self, key: tuple[str, int], answers: bytes, channel: Any = None) -> None:
        self.key = key
        self.channel = channel
        self.answers = answers
        self.fence = 0
        self.waiters = 0
        self.done: asyncio.Future[None] | None = None

    def wanted(self) -> bool:
        """Tell whether a duplicate waits, so that the round goes on without its own client."""
        return self.waiters > 0

    def leave(self) -> None:
        """Count a waiter out; the last one ends a round whose own client is gone (CANCEL-01)."""
        self.waiters -= 1
        running = self.done is not None and not self.done.done()
        if running and not self.waiters and hasattr(self.channel, "give_up"):
            self.channel.give_up()


class Redeemer:
    """The gate in front of every round that brings a token."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lease = services.limits.lease.total_seconds()
        self._flights: dict[tuple[str, int], Flight] = {}
        self._renewal: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """How many redeemed rounds are running now."""
        return len(self._flights)

    async def redeem(
        self, call: Call, answers: bytes, expires: float, channel: Any, work: Work
    ) -> Reply:
        """Run a round once; give every duplicate the same end.

        Raises:
            TokenRefused: Spent, or redeemed with other answers.
            Unavailable: The store cannot be reached, or too many duplicates wait.
        """
        key = (call.id, call.number)
        while True:
            flight = self._flights.get(key)
            if flight is None:
                reply = await self._fly(key, answers, expires, channel, work)
            else:
                await self._wait(flight, answers)
                reply = None
            if reply is not None:
                return reply

    async def _wait(self, flight: Flight, answers: bytes) -> None:
        if flight.answers != answers:
            raise TokenRefused("other-answers")
        if flight.waiters >= self._services.limits.waiters:
            raise Unavailable("too many requests wait for this round; try again later")
        if flight.done is None:
            flight.done = asyncio.get_running_loop().create_future()
        flight.waiters += 1
        try:
            await asyncio.shield(flight.done)
        finally:
            flight.leave()

    async def _fly(
        self, key: tuple[str, int], answers: bytes, expires: float, channel: Any, work: Work
    ) -> Reply | None:
        """Claim and run the round; None when somebody else's claim changed and all begins anew."""
        flight = Flight(key, answers, channel)
        self._flights[key] = flight
        if channel is not None:
            channel.keep_running = flight.wanted
        try:
            claim = await self._claim(key, answers, expires)
            if isinstance(claim, Mine):
                flight.fence = claim.fence
                return await self._run(flight, expires, claim.prefix, work)
            return await self._other(key, claim)
        finally:
            del self._flights[key]
            flight.channel = None  # which holds the flight: no cycle for the collector to find
            if flight.done is not None:
                flight.done.set_result(None)

    async def _claim(self, key: tuple[str, int], answers: bytes, expires: float) -> Claim:
        services = self._services
        call, number = key
        try:
            return await services.store.claim(
                call,
                number,
                answers,
                lease=self._lease,
                expires=expires,
                tries=services.limits.releases,
            )
        except StoreError as error:
            raise _unreachable() from error

    async def _other(self, key: tuple[str, int], claim: Recorded | Running | Spent) -> Reply | None:
        """Somebody else's round: give its outcome, wait for it, or refuse."""
        if isinstance(claim, Recorded):
            return from_bytes(await self._services.reveal(claim.outcome, _place(key)))
        if isinstance(claim, Spent):
            raise TokenRefused(claim.reason)
        try:
            await self._services.store.settled(*key, timeout=self._lease)
        except StoreError as error:
            raise _unreachable() from error
        return None

    async def _run(
        self, flight: Flight, expires: float, prefix: bytes | None, work: Work
    ) -> Reply | None:
        services = self._services
        call, number = flight.key
        self._keep_renewing()
        try:
            learned = await self._learned(flight.key, prefix) if prefix is not None else []
            reply = await work(flight.fence, learned)
        except Abandoned:
            return None  # the new holder's outcome is the truth
        except BaseException:
            # Whatever this was, the round has not ended: it may be tried again (S3-4).
            with contextlib.suppress(StoreError):
                await self._release(flight)
            raise
        if not reply.keep:
            with contextlib.suppress(StoreError):
                # Not released, its lease ends by itself; the client is told the same either way.
                await self._release(flight)
            return reply
        outcome = to_bytes(reply)
        if services.store.durable:
            outcome = await services.protect(outcome, _place(flight.key))
        made: Any = {"task": reply.task} if reply.task is not None else {}
        try:
            recorded = await services.store.record(
                call, number, flight.fence, outcome, expires=expires, **made
            )
        except StoreError as error:
            raise _unreachable() from error
        return reply if recorded else None

    async def _learned(self, key: tuple[str, int], prefix: bytes) -> list[Entry]:
        data = await self._services.reveal(prefix, f"prefix {key[0]} {key[1]}")
        return decode_journal(data).entries

    async def _release(self, flight: Flight) -> None:
        spend = self._services.redeem == "strict"
        await self._services.store.release(*flight.key, flight.fence, spend=spend)

    # --- leases --------------------------------------------------------------------------------

    def _keep_renewing(self) -> None:
        """Start the one timer that renews all flights at a third of the lease (S3-5)."""
        if self._renewal is None:
            loop = asyncio.get_running_loop()
            self._renewal = loop.call_later(self._lease / 3, self._renew)

    def _renew(self) -> None:
        self._renewal = None
        if self._flights:
            self._renewing = asyncio.ensure_future(self._renew_all())
            self._keep_renewing()

    async def _renew_all(self) -> None:
        for flight in list(self._flights.values()):
            if flight.fence:
                with contextlib.suppress(StoreError):
                    # A fence that is lost shows when the round is recorded.
                    await self._services.store.renew(*flight.key, flight.fence, lease=self._lease)


def _unreachable() -> Unavailable:
    """What a round is refused with when the store fails (S1-3)."""
    return Unavailable("the server's store cannot be reached; try again")


def _place(key: tuple[str, int]) -> str:
    return f"outcome {key[0]} {key[1]}"
