"""What the SQL stores have in common: each method of the port is one duty run by the driver."""

from collections.abc import Sequence

from antiphon.ports import Begin, CallRow, Claim, Effect, EffectRow, HeldRound, HeldTaskRun, NewTask
from antiphon.stores.duties import Duties
from antiphon.stores.sql_tasks import SqlTasks
from antiphon.stores.statements import Dialect
from antiphon.stores.task_duties import TaskDuties
from antiphon.stores.watch import Watch


class SqlStore(SqlTasks):
    """A store over SQL. A driver says how a duty is run."""

    durable = True
    shared = True

    def __init__(
        self, dialect: Dialect, *, outcome_bytes: int, grace: float, look_every: float
    ) -> None:
        """Make the duties in a dialect; `grace` and `outcome_bytes` are those of `Duties`."""
        super().__init__(TaskDuties(dialect), look_every=look_every)
        self._duties = Duties(dialect, outcome_bytes=outcome_bytes, grace=grace)
        self._outcome_bytes = outcome_bytes
        self._watch = Watch()

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
        if task is None:
            done = await self._run(self._duties.record(call, round, fence, outcome, expires))
        else:
            body = outcome if len(outcome) <= self._outcome_bytes else None
            duty = self._task_duties.record(call, round, fence, body, expires, task)
            done = await self._run(duty)
            self._bell.ring()
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
        under: HeldRound | HeldTaskRun | None,
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
