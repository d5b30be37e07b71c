"""Parked handlers: kept alive in memory between rounds. A cache; the journal is the truth.

Theory. A parked handler runs in a task of its own, because the first request's task ends with its
response. An ask in that task waits for a future instead of unwinding. The request that runs the
round waits for a *signal*: the handler has asked, or it has ended. The handler is kept under the
very token that was issued for its next round, so only the retry that continues this very history
can wake it. Whatever does not fit (another process, too late, an answer missing, asks in concurrent
branches) is replayed from the journal, with the same result.

Between two rounds the handler is asleep: there is no request, no client and no claim. A timer or
child task that lets it go on all the same drops it, before it can do anything, and its call goes on
by replay.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

from antiphon.engine.call import Call
from antiphon.engine.context import Context
from antiphon.engine.delivery import Delivery, wait_for_client
from antiphon.engine.execution import Batch, Execution
from antiphon.engine.outcome import ASLEEP, ENDING, RUNNING, ExecutionOutcome, Failed
from antiphon.engine.suspension import Suspended
from antiphon.protocol.asks import seconds
from antiphon.protocol.quotas import Allowance, weight
from antiphon.protocol.request import Request

_HANDLER_BYTES = 10 * 1024
"""Of a parked handler, besides its arguments."""


class ParkedHandler(Delivery):
    """A handler in a task of its own."""

    execution: Execution
    task: "asyncio.Task[ExecutionOutcome]"

    def __init__(self) -> None:
        """One that is not started yet."""
        self.owner: str = ""
        self.size: int = 0
        """Bytes that it is charged with while it is parked."""

        self.token = b""
        self.timer: asyncio.TimerHandle | None = None
        self._batch: Batch = ()
        self._answer: asyncio.Future[Sequence[Any]] | None = None
        self._signal = asyncio.get_running_loop().create_future()

    async def start(self, execution: Execution, arguments: dict[str, Any]) -> ExecutionOutcome:
        """Start the handler, whose execution delivers by this; returns how its first round ends."""
        self.execution = execution
        self.owner = execution.request.principal.owner
        running = execution.run(Context(execution), arguments)
        self.task = asyncio.create_task(running, name=f"antiphon {execution.handler.name}")
        self.task.add_done_callback(self._notify)
        return await self.next()

    # --- inside the handler's task -------------------------------------------------------------

    async def ask(self, execution: Execution, batch: Batch) -> Sequence[Any]:
        """Wait for the answers, or unwind where it cannot be told which branch waits."""
        own, all_ = execution.note_asked(batch), execution.branches
        if own is not None or (all_ is not None and all_.wait):
            return await execution.suspend(batch, own)
        return await self._wait(batch)

    async def pause(self, execution: Execution, delay: float) -> None:
        """Wait for the next round."""
        branches = execution.branch()
        if branches is not None:
            await execution.suspend((), branches)
        await self._wait(())

    async def _wait(self, batch: Batch) -> Sequence[Any]:
        self._batch = batch
        self._answer = asyncio.get_running_loop().create_future()
        self.execution.move(ASLEEP)
        self._notify()
        try:
            answer = await wait_for_client(self.execution, self._answer)
        except asyncio.CancelledError:
            if self.execution.state is not ASLEEP:
                raise
            # A timer of the author's ended the wait while there is no request to go on with.
            self.wake_without_request(self.execution)
            raise Suspended(self.execution) from None
        self.execution.held_since = None  # another round
        return answer

    def wake_without_request(self, execution: Execution) -> None:
        """Unwind the handler: it may do nothing while it is asleep, and its call is replayed."""
        execution.move(ENDING)
        if execution.branch() is not None:
            self.task.cancel()

    def _notify(self, _: object = None) -> None:
        if not self._signal.done():
            self._signal.set_result(None)

    # --- outside of it ---------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the handler waits for the answers of its next round."""
        return self.execution.state is ASLEEP and not self.task.done()

    async def next(self) -> ExecutionOutcome:
        """Wait until the handler has asked or ended; returns how the round ends."""
        try:
            await self._signal
        except asyncio.CancelledError:
            await self.end()  # the client went away; a running effect settles first
            raise
        if self.task.done():
            return self.task.result()
        if self.execution.effects:
            await self.execution.effects_settled()
        outcome = self.execution.judge(self.execution.suspended())
        if isinstance(outcome, Failed):
            await self.end()
        return outcome

    def kept_for(self) -> float:
        """Return for how many seconds it is kept."""
        execution = self.execution
        left = execution.call.deadline - execution.environment.clock()
        return min(seconds(execution.handler.options.park or 0.0), left)

    def fits(self, call: Call) -> bool:
        """Return whether the answers that came are all that the handler waits for."""
        if not self.alive or self._answer is None:
            return False
        known = {entry.key for entry in call.entries if entry.kind == "ask"}
        return all(key in known for key, _ in self._batch)

    def sleep(self) -> None:
        """Keep no more of the request than a handler needs that does nothing."""
        request = self.execution.request
        if not self.size:  # its variables hold what its first request brought
            self.size = _HANDLER_BYTES + weight(request.arguments)
        self._serve(
            Request(
                method=request.method,
                target=request.target,
                capabilities={},
                principal=request.principal,
            )
        )

    def _serve(self, request: Request) -> None:
        self.execution.request = request

    def wake(self, request: Request, call: Call, fence: int) -> None:
        """Give the handler the request of its next round, and let it go on with the answers."""
        execution, answer = self.execution, self._answer
        assert answer is not None
        self._serve(request)
        execution.call, execution.fence = call, fence
        execution.asked, execution.ends_by = {}, None
        execution.move(RUNNING)
        raws = {entry.key: entry.value() for entry in call.entries if entry.kind == "ask"}
        self._signal = asyncio.get_running_loop().create_future()
        self._answer = None
        answer.set_result([raws[key] for key, _ in self._batch])

    async def end(self) -> None:
        """Unwind the handler and wait for it."""
        self.drop()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({self.task})

    def drop(self) -> None:
        """Unwind the handler: its context is dead from now on."""
        self.execution.move(ENDING)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.task.cancel()
        self.task.add_done_callback(_retrieved)


class ParkedHandlers:
    """The handlers that are parked in this process, oldest first."""

    def __init__(self, allowance: Allowance) -> None:
        """Keep as many as the allowance lets each caller have."""
        self._allowance = allowance
        self._handlers: OrderedDict[bytes, ParkedHandler] = OrderedDict()

    def __len__(self) -> int:
        """Count the parked handlers."""
        return len(self._handlers)

    def park(self, handler: ParkedHandler, token: str) -> None:
        """Keep a handler for the retry that brings this token.

        The oldest of the same caller are unwound for it. Where that does not help, it is unwound
        itself; either way its call goes on by replay.
        """
        if not handler.alive:
            return
        handler.sleep()
        while not self._allowance.take(handler.owner, handler.size):
            oldest = self._oldest(handler.owner)
            if oldest is None:
                handler.drop()
                return
            self._drop(oldest)
        handler.token = _digest(token)
        self._handlers[handler.token] = handler
        lasts = handler.kept_for()
        handler.timer = asyncio.get_running_loop().call_later(lasts, self._drop, handler)
        handler.task.add_done_callback(partial(self._ended, handler))

    def _oldest(self, owner: str) -> ParkedHandler | None:
        if not self._allowance.of(owner):
            return None
        return next(one for one in self._handlers.values() if one.owner == owner)

    def _ended(self, handler: ParkedHandler, task: "asyncio.Task[Any]") -> None:
        """Forget a handler that ended by itself, or while it slept."""
        if self._handlers.get(handler.token) is handler:
            self._forget(handler)
        _retrieved(task)

    def wake(self, token: str, request: Request, call: Call, fence: int) -> ParkedHandler | None:
        """Let the handler of a token go on with the answers that came; None where none can."""
        handler = self._handlers.get(_digest(token)) if self._handlers else None
        if handler is None:
            return None
        self._forget(handler)
        if not handler.fits(call):
            handler.drop()
            return None
        handler.wake(request, call, fence)
        return handler

    def _forget(self, handler: ParkedHandler) -> None:
        if self._handlers.pop(handler.token, None) is None:
            return
        self._allowance.give_back(handler.owner, handler.size)
        if handler.timer is not None:
            handler.timer.cancel()
            handler.timer = None

    def _drop(self, handler: ParkedHandler) -> None:
        self._forget(handler)
        handler.drop()

    async def close(self) -> None:
        """Unwind every handler; their calls go on by replay, here or elsewhere."""
        handlers = list(self._handlers.values())
        for handler in handlers:
            self._drop(handler)
        if handlers:
            await asyncio.wait({handler.task for handler in handlers})


def _digest(token: str) -> bytes:
    return blake2b(token.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Retrieve how a dropped handler ended, so that asyncio does not warn about it."""
    if not task.cancelled():
        task.exception()
