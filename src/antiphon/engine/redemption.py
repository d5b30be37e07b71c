"""Redeeming a token once: claim, run, record; duplicates wait or get what was recorded (S3).

Owns the flights of this process (rounds that are running now) and their leases. Knows no handler:
what a claimed round does is given as a coroutine.

A store that is elsewhere answers after a while, and a client may go away meanwhile. What it was
asked to do goes on by itself then, and a claim that nobody needs any more is given back: otherwise
the round would stay claimed until its lease ends.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from antiphon.core.journal import Entry
from antiphon.core.request import NO_CHANNEL, Channel
from antiphon.engine.call import Call
from antiphon.engine.environment import Environment
from antiphon.engine.reply import Reply, from_bytes, to_bytes
from antiphon.engine.suspension import Abandoned
from antiphon.errors import StoreError, TokenRefused, Unavailable
from antiphon.ports import Claim, Claimed, Recorded, Running, Spent
from antiphon.seal.claims import decode_journal

_T = TypeVar("_T")

_FIRST_PAUSE, _MOST_PAUSE = 0.05, 2.0
"""Seconds between tries of giving back a claim to a store that is out of reach."""

Work = Callable[[int, list[Entry]], Awaitable[Reply]]
"""Run the claimed round under a fence, after what an earlier attempt had learned."""


class RunningRound:
    """A round that is running in this process."""

    __slots__ = ("answers", "channel", "done", "fence", "key", "waiters")

    def __init__(self, key: tuple[str, int], answers: bytes, channel: Channel = NO_CHANNEL) -> None:
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
        if running and not self.waiters:
            self.channel.abort()


class Redemptions:
    """The gate in front of every round that brings a token."""

    def __init__(self, services: Environment) -> None:
        self._services = services
        self._lease = services.limits.lease.total_seconds()
        self._waits = services.store.durable or services.store.shared
        """Whether the store is elsewhere. Memory answers at once, and nothing can come between."""

        self._loose: set[asyncio.Task[Any]] = set()
        """What the store does for rounds whose client has gone."""
        self._flights: dict[tuple[str, int], RunningRound] = {}
        self._renewal: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """How many redeemed rounds are running now."""
        return len(self._flights)

    async def close(self) -> None:
        """Let the store end what it does for rounds that are over; one out of reach is left."""
        if self._loose:
            _, late = await asyncio.wait(self._loose, timeout=_MOST_PAUSE)
            for task in late:
                task.cancel()

    async def redeem(
        self, call: Call, answers: bytes, expires: float, channel: Channel, work: Work
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

    async def _wait(self, flight: RunningRound, answers: bytes) -> None:
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
        self, key: tuple[str, int], answers: bytes, expires: float, channel: Channel, work: Work
    ) -> Reply | None:
        """Claim and run the round; None when somebody else's claim changed and all begins anew."""
        flight = RunningRound(key, answers, channel)
        self._flights[key] = flight
        channel.on_disconnect(flight.wanted)
        try:
            try:
                claim = await self._claim(key, answers, expires)
            except StoreError as error:
                raise _unreachable() from error
            if isinstance(claim, Claimed):
                flight.fence = claim.fence
                return await self._run(flight, expires, claim.prefix, work)
            return await self._other(key, claim)
        finally:
            del self._flights[key]
            channel.on_disconnect(None)  # no reference cycle for the collector to find
            if flight.done is not None:
                flight.done.set_result(None)

    def _claim(
        self, key: tuple[str, int], answers: bytes, expires: float
    ) -> Coroutine[Any, Any, Claim]:
        # No coroutine of its own: every round comes through here.
        services = self._services
        call, number = key
        claiming = services.store.claim(
            call,
            number,
            answers,
            lease=self._lease,
            expires=expires,
            tries=services.limits.releases,
        )
        return self._claim_elsewhere(key, claiming) if self._waits else claiming

    async def _claim_elsewhere(
        self, key: tuple[str, int], claiming: Coroutine[Any, Any, Claim]
    ) -> Claim:
        task = self._detached(claiming)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._detached(self._undo(key, task))
            raise

    async def _undo(self, key: tuple[str, int], claiming: "asyncio.Task[Claim]") -> None:
        """Give back what was claimed for a client that has gone."""
        with contextlib.suppress(StoreError):
            claim = await claiming
            if isinstance(claim, Claimed):
                await self._release(key, claim.fence)

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
        self, flight: RunningRound, expires: float, prefix: bytes | None, work: Work
    ) -> Reply | None:
        self._keep_renewing()
        try:
            learned = await self._learned(flight.key, prefix) if prefix is not None else []
            reply = await work(flight.fence, learned)
        except Abandoned:
            return None  # the new holder's outcome is the truth
        except BaseException:
            # Whatever this was, the round has not ended: it may be tried again (S3-4).
            await self._give_back(flight)
            raise
        if not reply.keep:
            await self._give_back(flight)
            return reply
        if self._waits or reply.task is not None:
            recording = self._whole(self._record(flight, reply, expires))
        else:
            call, number = flight.key
            recording = self._services.store.record(
                call, number, flight.fence, to_bytes(reply), expires=expires
            )
        try:
            recorded = await recording
        except StoreError as error:
            if not self._waits:
                await self._release(flight.key, flight.fence)
            raise _unreachable() from error
        return reply if recorded else None

    async def _record(self, flight: RunningRound, reply: Reply, expires: float) -> bool:
        services = self._services
        call, number = flight.key
        made: Any = {"task": reply.task} if reply.task is not None else {}
        try:
            outcome = await services.protect(to_bytes(reply), _place(flight.key))
            return await services.store.record(
                call, number, flight.fence, outcome, expires=expires, **made
            )
        except BaseException:
            # It may have been recorded after all; then there is nothing to give back.
            await self._release(flight.key, flight.fence)
            raise

    async def _learned(self, key: tuple[str, int], prefix: bytes) -> list[Entry]:
        data = await self._services.reveal(prefix, f"prefix {key[0]} {key[1]}")
        return decode_journal(data).entries

    # --- giving back ---------------------------------------------------------------------------

    async def _give_back(self, flight: RunningRound) -> None:
        """Give the round back before the client hears of it, so that it may come again at once."""
        releasing = self._release(flight.key, flight.fence)
        await (self._whole(releasing) if self._waits else releasing)

    async def _release(self, key: tuple[str, int], fence: int) -> None:
        """Free the claim or spend it (S3-4); a store out of reach is tried again by and by."""
        spend = self._services.redeem == "strict"
        try:
            await self._services.store.release(*key, fence, spend=spend)
        except StoreError:
            self._detached(self._release_later(key, fence, spend))

    async def _release_later(self, key: tuple[str, int], fence: int, spend: bool) -> None:
        """Try for as long as the lease could still be good; after it, others may claim anyway."""
        pause, spent = _FIRST_PAUSE, 0.0
        while spent < self._lease:
            await asyncio.sleep(pause)
            spent += pause
            pause = min(pause * 2, _MOST_PAUSE)
            with contextlib.suppress(StoreError):
                return await self._services.store.release(*key, fence, spend=spend)
        return None

    async def _whole(self, duty: Coroutine[Any, Any, _T]) -> _T:
        """Await a duty that goes on to its end also when nobody waits for it any more."""
        return await asyncio.shield(self._detached(duty))

    def _detached(self, duty: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        task = asyncio.ensure_future(duty)
        self._loose.add(task)
        task.add_done_callback(self._landed)
        return task

    def _landed(self, task: "asyncio.Task[Any]") -> None:
        self._loose.discard(task)
        if not task.cancelled():
            task.exception()  # seen: whoever waited was told, and nobody else needs to be

    # --- leases --------------------------------------------------------------------------------

    def _keep_renewing(self) -> None:
        """Start the one timer that renews all flights at a third of the lease (S3-5)."""
        if self._renewal is None:
            loop = asyncio.get_running_loop()
            self._renewal = loop.call_later(self._lease / 3, self._renew)

    def _renew(self) -> None:
        self._renewal = None
        if self._flights:
            if self._renewing is None or self._renewing.done():
                self._renewing = asyncio.ensure_future(self._renew_all())
            self._keep_renewing()

    async def _renew_all(self) -> None:
        """Renew all at once: with a store that is slow, the last must not wait for the first."""
        flights = [flight for flight in self._flights.values() if flight.fence]
        await asyncio.gather(*map(self._renew_one, flights))

    async def _renew_one(self, flight: RunningRound) -> None:
        with contextlib.suppress(StoreError):
            # A fence that is lost shows when the round is recorded.
            await self._services.store.renew(*flight.key, flight.fence, lease=self._lease)


def _unreachable() -> Unavailable:
    """What a round is refused with when the store fails (S1-3)."""
    return Unavailable("the server's store cannot be reached; try again")


def _place(key: tuple[str, int]) -> str:
    return f"outcome {key[0]} {key[1]}"
