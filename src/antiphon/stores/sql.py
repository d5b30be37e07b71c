"""What the SQL stores have in common: each method of the port is one duty run by the driver."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from antiphon.errors import StoreError
from antiphon.ports import Begin, CallRow, Claim, Effect, EffectRow, NewTask, Under
from antiphon.stores.duties import Duties, Duty
from antiphon.stores.watch import Watch

_T = TypeVar("_T")


class SqlStore(ABC):
    """A store over SQL. A driver says how a duty is run."""

    durable = True
    shared = True

    def __init__(self, duties: Duties) -> None:
        self._duties = duties
        self._watch = Watch()

    @abstractmethod
    async def _run(self, duty: Duty[_T], *, write: bool = True) -> _T:
        """Run all statements of a duty in one transaction, committed when this returns."""

    async def claim(
        self, call: str, round: int, answers: bytes, *, lease: float, expires: float, tries: int
    ) -> Claim:
        """Claim a round for running it."""
        return await self._run(self._duties.claim(call, round, answers, lease, expires, tries))

    async def renew(self, call: str, round: int, fence: int, *, lease: float) -> bool:
        """Extend the lease; False if the fence is lost."""
        return await self._run(self._duties.renew(call, round, fence, lease))

    async def record(
        self,
        call: str,
        round: int,
        fence: int,
        outcome: bytes,
        *,
        expires: float,
        task: NewTask | None = None,
    ) -> bool:
        """Record the outcome and end the claim."""
        if task is not None:
            raise StoreError("this store keeps no tasks", retryable=False)
        done = await self._run(self._duties.record(call, round, fence, outcome, expires))
        self._watch.wake(call, round)
        return done

    async def release(self, call: str, round: int, fence: int, *, spend: bool = False) -> None:
        """Give the round back for another try, or spend it."""
        await self._run(self._duties.release(call, round, fence, spend))
        self._watch.wake(call, round)

    async def settled(self, call: str, round: int, *, timeout: float) -> None:
        """Return when the round may have left `Running`, or after `timeout` seconds."""
        await self._watch.wait(
            call,
            round,
            timeout,
            lambda: self._run(self._duties.state(call, round), write=False),
        )

    async def begin(
        self,
        effect: Effect,
        *,
        lease: float,
        expires: float,
        under: Under | None,
        retry: bool,
        window: float | None = None,
    ) -> Begin:
        """Claim an effect before it runs."""
        return await self._run(self._duties.begin(effect, lease, expires, under, retry, window))

    async def hold(self, effect: str, fence: int, *, lease: float) -> bool:
        """Extend the lease of a running effect; False if the fence is lost."""
        return await self._run(self._duties.hold(effect, fence, lease))

    async def settle(
        self, effect: str, fence: int, *, result: bytes | None, error: str | None
    ) -> bool:
        """Record the result or the failure; False if the fence is lost."""
        return await self._run(self._duties.settle(effect, fence, result, error))

    async def abandon(self, effect: str, fence: int) -> None:
        """Free the claim: nothing happened."""
        await self._run(self._duties.abandon(effect, fence))

    async def effects(self, call: str) -> Sequence[EffectRow]:
        """List the effects of a call, oldest first."""
        return await self._run(self._duties.effects(call), write=False)

    async def calls(self, *, limit: int = 100) -> Sequence[CallRow]:
        """List calls, the latest to expire first."""
        return await self._run(self._duties.calls(limit), write=False)

    async def decide(self, call: str, key: str, *, result: bytes | None) -> bool:
        """Settle an uncertain effect by an operator's word."""
        return await self._run(self._duties.decide(call, key, result))

    async def keep(
        self, call: str, round: int, data: bytes, *, owner: str, quota: int, expires: float
    ) -> bool:
        """Keep an immutable segment; False when the owner holds enough already."""
        return await self._run(self._duties.keep(call, round, data, owner, quota, expires))

    async def fetch(self, call: str, round: int) -> bytes | None:
        """Give the segment, or None when it is gone."""
        return await self._run(self._duties.fetch(call, round), write=False)
