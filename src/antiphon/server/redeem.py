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

    __slots__ = ("answers", "done", "fence", "key", "waiters")

    def __init__(self, key: tuple[str, int], answers: bytes) -> None:
        self.key = key
        self.answers = answers
        self.fence = 0
        self.waiters = 0
        self.done: asyncio.Future[None] | None = None

    def wanted(self) -> bool:
        """Tell whether a duplicate waits, so that the round goes on without its own client."""
        return self.waiters > 0


class Redeemer:
    """The gate in front of every round that brings a token."""

    def __init__(self, services: Services) -> None:
        self._services = services
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
            flight.waiters -= 1

    async def _fly(
        self, key: tuple[str, int], answers: bytes, expires: float, channel: Any, work: Work
    ) -> Reply | None:
        """Claim and run the round; None when somebody else's claim changed and all begins anew."""
        flight = Flight(key, answers)
        self._flights[key] = flight
        if channel is not None:
            channel.keep_running = flight.wanted
        try:
            claim = await self._claim(key, answers, expires)
            match claim:
                case Mine(fence, prefix):
                    flight.fence = fence
                    return await self._run(flight, expires, prefix, work)
                case Recorded(outcome):
                    return from_bytes(await self._services.reveal(outcome, _place(key)))
                case Running():
                    lease = self._services.limits.lease.total_seconds()
                    await self._store("settled")(*key, timeout=lease)
                    return None
                case Spent(reason):
                    raise TokenRefused(reason)
        finally:
            del self._flights[key]
            if flight.done is not None:
                flight.done.set_result(None)

    async def _claim(self, key: tuple[str, int], answers: bytes, expires: float) -> Claim:
        limits = self._services.limits
        return await self._store("claim")(
            *key,
            answers,
            lease=limits.lease.total_seconds(),
            expires=expires,
            tries=limits.releases,
        )

    async def _run(
        self, flight: Flight, expires: float, prefix: bytes | None, work: Work
    ) -> Reply | None:
        services = self._services
        call, number = flight.key
        self._keep_renewing()
        try:
            learned = await self._learned(flight.key, prefix)
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
        outcome = await services.protect(to_bytes(reply), _place(flight.key))
        made = {"task": reply.task} if reply.task is not None else {}
        recorded = await self._store("record")(
            call, number, flight.fence, outcome, expires=expires, **made
        )
        return reply if recorded else None

    async def _learned(self, key: tuple[str, int], prefix: bytes | None) -> list[Entry]:
        if prefix is None:
            return []
        data = await self._services.reveal(prefix, f"prefix {key[0]} {key[1]}")
        return decode_journal(data).entries

    async def _release(self, flight: Flight) -> None:
        spend = self._services.redeem == "strict"
        await self._services.store.release(*flight.key, flight.fence, spend=spend)

    def _store(self, duty: str) -> Callable[..., Awaitable[Any]]:
        """Give a duty of the store that refuses the round when the store fails (S1-3)."""
        method = getattr(self._services.store, duty)

        async def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return await method(*args, **kwargs)
            except StoreError as error:
                raise Unavailable("the server's store cannot be reached; try again") from error

        return guarded

    # --- leases --------------------------------------------------------------------------------

    def _keep_renewing(self) -> None:
        """Start the one timer that renews all flights at a third of the lease (S3-5)."""
        if self._renewal is None:
            lease = self._services.limits.lease.total_seconds()
            loop = asyncio.get_running_loop()
            self._renewal = loop.call_later(lease / 3, self._renew)

    def _renew(self) -> None:
        self._renewal = None
        if self._flights:
            self._renewing = asyncio.ensure_future(self._renew_all())
            self._keep_renewing()

    async def _renew_all(self) -> None:
        lease = self._services.limits.lease.total_seconds()
        for flight in list(self._flights.values()):
            if flight.fence:
                with contextlib.suppress(StoreError):
                    # A fence that is lost shows when the round is recorded.
                    await self._services.store.renew(*flight.key, flight.fence, lease=lease)


def _place(key: tuple[str, int]) -> str:
    return f"outcome {key[0]} {key[1]}"
