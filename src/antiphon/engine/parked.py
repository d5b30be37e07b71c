"""Parked frames: a live handler kept in memory between rounds. A cache; the journal is the truth.

Theory. A parked handler runs in a task of its own, because the first request's task ends with its
response. An ask in that task waits for a future instead of unwinding. The request that runs the
round waits for a *signal*: the frame has asked, or it has ended. The frame is kept under the very
token that was issued for its next round, so only the retry that continues this very history can
wake it. Whatever does not fit (another process, too late, an answer missing, asks in concurrent
branches) is replayed from the journal, with the same result.

What belongs to a request (capabilities, progress, cancellation) is looked up through `run.round`,
which is bound anew at each wake. Knows no wire and no token but its digest.
"""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from antiphon.core.request import Principal, Request
from antiphon.engine.call import Call
from antiphon.engine.delivery import Batch
from antiphon.engine.execution import Execution


class ParkedHandler:
    """A handler in a task of its own."""

    __slots__ = ("_answer", "_batch", "_signal", "run", "task", "timer", "token")

    def __init__(self, run: Execution, arguments: dict[str, Any]) -> None:
        """Start the handler."""
        self.run = run
        run.way = self
        self.token = b""
        self.timer: asyncio.TimerHandle | None = None
        self._batch: Batch = ()
        self._answer: asyncio.Future[Sequence[Any]] | None = None
        self._signal = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(run.play(arguments), name=f"antiphon {run.handler.name}")
        self.task.add_done_callback(self._tell)

    # --- inside the frame ----------------------------------------------------------------------

    async def ask(self, run: Execution, batch: Batch) -> Sequence[Any]:
        """Wait for the answers, or unwind where a frame cannot tell which branch waits."""
        run.remember_asked(batch)
        if run.in_branch or run.branches_wait:
            return await run.suspend(batch)
        return await self._wait(batch)

    async def pause(self, run: Execution) -> None:
        """Wait for the next round."""
        if run.in_branch:
            await run.suspend()
        await self._wait(())

    async def _wait(self, batch: Batch) -> Sequence[Any]:
        self._batch = batch
        self._answer = asyncio.get_running_loop().create_future()
        self._tell()
        return await self._answer

    def _tell(self, _: object = None) -> None:
        if not self._signal.done():
            self._signal.set_result(None)

    # --- outside the frame ---------------------------------------------------------------------

    async def round(self) -> Any:
        """Wait until the frame has asked or ended; give what the handler returned.

        Raises:
            Asking: It has asked, and can be parked.
        """
        try:
            await self._signal
        except asyncio.CancelledError:
            await self.end()  # the client went away; a running effect settles first
            raise
        if self.task.done():
            return self.task.result()
        raise Asking

    def fits(self, call: Call) -> bool:
        """Tell whether the answers that came are all that the frame waits for."""
        if self.task.done() or self._answer is None:
            return False
        known = {entry.key for entry in call.entries if entry.kind == "ask"}
        return all(key in known for key, _ in self._batch)

    def wake(self, round: Request, call: Call, fence: int) -> None:
        """Bind the frame to a new request and let it go on."""
        run, answer = self.run, self._answer
        assert answer is not None
        run.rebind(round, call, fence)
        raws = {entry.key: entry.value for entry in call.entries if entry.kind == "ask"}
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
        self.run.told = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.task.cancel()
        self.task.add_done_callback(_seen)


class Asking(Exception):
    """The frame waits for answers."""


class ParkedHandlers:
    """The frames that are parked in this process, oldest first."""

    def __init__(self, limit: int, per_principal: int) -> None:
        self._limit = limit
        self._per_principal = per_principal
        self._frames: OrderedDict[bytes, ParkedHandler] = OrderedDict()
        self._owned: Counter[Principal] = Counter()

    def __len__(self) -> int:
        """Count the parked frames."""
        return len(self._frames)

    def park(self, frame: ParkedHandler, token: str, seconds: float) -> None:
        """Keep a frame for the retry that brings this token; make room by the oldest first."""
        owner = frame.run.round.principal
        if self._owned[owner] >= self._per_principal:
            self._drop(next(f for f in self._frames.values() if f.run.round.principal == owner))
        if len(self._frames) >= self._limit:
            self._drop(next(iter(self._frames.values())))
        frame.token = _digest(token)
        self._frames[frame.token] = frame
        self._owned[owner] += 1
        frame.timer = asyncio.get_running_loop().call_later(seconds, self._drop, frame)

    def take(self, token: str) -> ParkedHandler | None:
        """Give the frame of a token, which is no longer parked then."""
        frame = self._frames.get(_digest(token)) if self._frames else None
        if frame is not None:
            self._forget(frame)
        return frame

    def _forget(self, frame: ParkedHandler) -> None:
        if self._frames.pop(frame.token, None) is None:
            return
        owner = frame.run.round.principal
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]
        if frame.timer is not None:
            frame.timer.cancel()
            frame.timer = None

    def _drop(self, frame: ParkedHandler) -> None:
        self._forget(frame)
        frame.drop()

    async def close(self) -> None:
        """Unwind every frame; their calls go on by replay, here or elsewhere."""
        frames = list(self._frames.values())
        for frame in frames:
            self._drop(frame)
        if frames:
            await asyncio.wait({frame.task for frame in frames})


def _digest(token: str) -> bytes:
    return blake2b(token.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _seen(task: asyncio.Task[Any]) -> None:
    """Take note of how a dropped frame ended, so that nobody is warned about it."""
    if not task.cancelled():
        task.exception()
