"""The lease of a running effect: renewed while the body runs, and looked at before each step.

A process that was frozen may wake when its lease is over and another process has taken the effect
over. Its body gets no further step before the store has said that the effect is still its own.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Generator
from typing import Any

from antiphon.engine.execution import Execution
from antiphon.errors import EffectUncertain, StoreError


class Overtaken(EffectUncertain):
    """Somebody else decides about the effect by now: its lease was over."""


class EffectLease:
    """The claim of one process on one effect."""

    def __init__(self, execution: Execution, effect: str, fence: int) -> None:
        """Take what was claimed just now."""
        self._store = execution.environment.store
        self._effect = effect
        self._fence = fence
        self.lease: float = execution.environment.limits.lease.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._good_until = self._loop.time() + self.lease
        self.lost: bool = False
        """Whether the body was stopped because the effect is no longer ours."""

    @property
    def good(self) -> bool:
        """Whether nobody else can have taken the effect over."""
        return self._loop.time() < self._good_until

    async def renew(self) -> bool:
        """Extend the lease; False if the effect is no longer ours.

        Raises:
            StoreError: The store cannot be reached.
        """
        asked = self._loop.time()
        if not await self._store.hold(self._effect, self._fence, lease=self.lease):
            return False
        self._good_until = asked + self.lease
        return True

    async def is_ours(self, *, verified: bool) -> bool:
        """Ask the store after the lease was over.

        While the store is away, an effect that others may verify is not ours for sure.
        """
        try:
            return await self.renew()
        except StoreError:
            return not verified

    @contextlib.contextmanager
    def renewed(self) -> Generator[None]:
        """Renew the lease while the body runs."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(self.lease / 3)
                with contextlib.suppress(StoreError):  # it may be back before the lease ends
                    await self.renew()

        task: asyncio.Task[None] | None = None

        def start() -> None:
            nonlocal task
            task = asyncio.ensure_future(renew())

        # Most effects end long before a third of the lease: only then is a task made.
        timer = self._loop.call_later(self.lease / 3, start)
        try:
            yield
        finally:
            timer.cancel()
            if task is not None:
                task.cancel()


class GuardedBody:
    """The body of an effect, which goes on only while the effect is ours."""

    def __init__(
        self, body: Coroutine[Any, Any, Any], lease: EffectLease, *, verified: bool
    ) -> None:
        """Take the body, and whether others may find out how the effect ended."""
        self._body = body
        self._lease = lease
        self._verified = verified

    def __await__(self) -> Generator[Any, Any, Any]:
        """Run the body step by step."""
        body, lease = self._body, self._lease
        try:
            waits_for = body.send(None)
            while True:
                try:
                    given = yield waits_for
                    if not lease.good:
                        yield from self._check().__await__()
                except BaseException as error:  # noqa: BLE001 - the body's, as everything is
                    waits_for = body.throw(error)
                else:
                    waits_for = body.send(given)
        except StopIteration as end:
            return end.value
        finally:
            body.close()

    async def _check(self) -> None:
        """Stop the body where the effect is no longer ours."""
        if not await self._lease.is_ours(verified=self._verified):
            self._lease.lost = True
            raise asyncio.CancelledError
