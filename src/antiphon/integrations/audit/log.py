"""Writes the audit of one server: gathers events, and waits until they are kept.

Events that come while others are being written are written together afterwards: one step of the
store, and one wait for the disk, for many rounds. Whoever writes an event waits for it; one whose
client has gone is written all the same.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from antiphon.audit import Audit
from antiphon.errors import CallerError, ConfigError, StoreError
from antiphon.integrations.audit.lines import LinesFile, LinesStream
from antiphon.integrations.audit.rounds import AuditedRound
from antiphon.ports import AuditStore, Clock, Entropy, Store
from antiphon.protocol.audit import AuditEvent
from antiphon.protocol.failures import OccasionalLog
from antiphon.protocol.request import Principal, Request

log: logging.Logger = logging.getLogger("antiphon")

_MOST_NAME = 500
BATCH = 256
"""Events written together at most."""

_PURGE_EVERY = 3_600.0
_CLOSING = 5.0
_REFUSALS_PER_MINUTE = 120
"""Refusals of one process that are written; what is beyond is counted in the next one. Anybody can
cause refusals, and must not push everything else out of a bounded audit."""

Sink = Callable[[Sequence[AuditEvent]], Awaitable[object]]
Digest = Callable[[bytes], bytes]
"""Names arguments so that who reads the audit cannot test guesses."""


class _LoopQueue:
    """What one event loop has to write."""

    __slots__ = ("events", "writer")

    def __init__(self) -> None:
        self.events: list[tuple[AuditEvent, asyncio.Future[None]]] = []
        self.writer: asyncio.Task[None] | None = None


class AuditLog:
    """The audit of one server in one process."""

    def __init__(
        self,
        settings: Audit,
        store: Store,
        *,
        server: str,
        digest: Digest,
        meta: bytes,
        refused: Callable[[StoreError], CallerError],
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        """Choose where records go; nothing is opened yet.

        Raises:
            ConfigError: The store keeps no audit.
        """
        self.settings = settings
        self.server = server
        self.process: str = entropy(8).hex()
        self.digest = digest
        self.refused = refused
        """Logs that the store failed; returns what a client is told."""

        self._failed_result = b'"isError":true' + meta
        self.clock = clock
        self._purged: AuditStore | None = None
        self._sinks = self._make_sinks(store)
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopQueue] = WeakKeyDictionary()
        self._lost = 0
        self._trouble = OccasionalLog(log, clock)
        self._purge_at = 0.0
        self._refused: tuple[int, int] = (0, 0)
        """The minute, and how many refusals were written in it."""

        self._background: set[asyncio.Task[None]] = set()

    def _make_sinks(self, store: Store) -> list[Sink]:
        sinks: list[Sink] = []
        if self.settings.store:
            if not isinstance(store, AuditStore):
                raise ConfigError(
                    "this store keeps no audit: use sqlite:///, postgresql:// or the memory store, "
                    "or write lines: Audit(store=False, lines=...)"
                )
            kept = self._purged = store
            sinks.append(lambda events: kept.append_audit(self.server, events))
        lines = self.settings.lines
        if isinstance(lines, str | Path):
            file = LinesFile(Path(lines))
            if not file.path.parent.is_dir():
                raise ConfigError(
                    f"the folder {file.path.parent.absolute()} of Audit(lines=...) does not exist"
                )
            sinks.append(lambda events: asyncio.to_thread(file.append, events))
        elif lines is not None:
            stream = LinesStream(lines)
            sinks.append(lambda events: _at_once(stream.append, events))
        return sinks

    # --- events ----------------------------------------------------------------------------------

    def round(self, request: Request, *, task: str = "") -> AuditedRound:
        """Begin to note a round, or a run of a task."""
        return AuditedRound(self, request, task=task)

    def event(self, request: Request, **members: Any) -> AuditEvent:
        """Return an event about a request; only what is allowed gets in."""
        who = request.principal
        return AuditEvent(
            at=self.clock(),
            server=self.server,
            process=self.process,
            method=request.method,
            target=request.target[:_MOST_NAME],
            issuer=who.issuer,
            subject=who.subject,
            client_id=who.client_id,
            transport=who.transport,
            actor=who.actor,
            client=_client(request.client),
            **members,
        )

    async def decided(
        self,
        *,
        call: str,
        task: str,
        target: str,
        key: str,
        issuer: str,
        subject: str,
        choice: str,
        status: str,
        digest: bytes,
    ) -> None:
        """Write that a person has decided."""
        await self.write(
            AuditEvent(
                kind="decision",
                at=self.clock(),
                server=self.server,
                process=self.process,
                call=call,
                task=task,
                target=target,
                key=key,
                issuer=issuer,
                subject=subject,
                transport="console",
                outcome=choice,
                reason=status,
                digest=self.digest(digest),
            )
        )

    async def settled(
        self,
        *,
        call: str,
        key: str,
        issuer: str,
        subject: str,
        transport: str,
        outcome: str,
        reason: str,
    ) -> None:
        """Write what an operator says about an uncertain effect."""
        await self.write(
            AuditEvent(
                kind="settlement",
                at=self.clock(),
                server=self.server,
                process=self.process,
                call=call,
                key=key,
                issuer=issuer,
                subject=subject,
                transport=transport,
                outcome=outcome,
                digest=self.digest(reason.encode("utf-8", "surrogatepass")),
            )
        )

    async def refuse(self, event: AuditEvent) -> None:
        """Write a refusal, or count it where there are too many."""
        minute, written = self._refused
        now = int(event.at // 60)
        written = written + 1 if now == minute else 1
        self._refused = (now, written)
        if written > _REFUSALS_PER_MINUTE:
            self._lost += 1
            return
        await self.write(event)

    async def note_refusal(self, principal: Principal, reason: str, method: str = "") -> None:
        """Write that a transport has refused a request. It stays refused if that cannot be."""
        event = AuditEvent(
            kind="refusal",
            at=self.clock(),
            server=self.server,
            process=self.process,
            method=method,
            issuer=principal.issuer,
            subject=principal.subject,
            client_id=principal.client_id,
            transport=principal.transport,
            actor=principal.actor,
            outcome="refused",
            reason=reason,
        )
        try:
            await self.refuse(event)
        except StoreError as error:
            self._lost += 1
            self._trouble.error(f"the audit has no record of a refusal: {error}")

    # --- writing ---------------------------------------------------------------------------------

    async def write(self, event: AuditEvent) -> None:
        """Write one event, and return when it is kept.

        Raises:
            StoreError: It cannot be written, and gaps are not allowed.
        """
        loop = asyncio.get_running_loop()
        waiting = self._queues.get(loop)
        if waiting is None:
            waiting = self._queues[loop] = _LoopQueue()
        written: asyncio.Future[None] = loop.create_future()
        waiting.events.append((event, written))
        if waiting.writer is None:
            waiting.writer = asyncio.ensure_future(self._write_all(waiting))
        await asyncio.shield(written)

    def write_later(self, event: AuditEvent) -> None:
        """Write an event that nobody waits for."""
        self._in_background(self.write(event))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._lost += 1

    def is_failure(self, result: bytes) -> bool:
        """Tell whether a result says that its tool has failed."""
        return result.endswith(self._failed_result)

    async def close(self) -> None:
        """Wait for what nobody waits for, while the store is still open."""
        if self._background:
            await asyncio.wait(self._background, timeout=_CLOSING)

    async def _write_all(self, waiting: _LoopQueue) -> None:
        try:
            while waiting.events:
                batch, waiting.events = waiting.events[:BATCH], waiting.events[BATCH:]
                await self._write_batch(batch)
        finally:
            waiting.writer = None
        if self._purged is not None and self.clock() >= self._purge_at:
            self._purge_at = self.clock() + _PURGE_EVERY
            self._in_background(self._purge(self._purged))

    async def _write_batch(
        self, batch: Sequence[tuple[AuditEvent, "asyncio.Future[None]"]]
    ) -> None:
        events = [event for event, _ in batch]
        lost, self._lost = self._lost, 0
        if lost:
            events[0] = msgspec.structs.replace(events[0], lost=lost)
        failure: BaseException | None = None
        try:
            for sink in self._sinks:
                await sink(events)
        except StoreError as error:
            self._lost += lost
            failure = self._failed(error, len(events))
        except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
            failure = error
        for _, written in batch:
            if written.done():
                continue
            if failure is None:
                written.set_result(None)
            else:
                written.set_exception(failure)
                written.exception()  # retrieved: whoever waited may have gone

    def _failed(self, error: StoreError, count: int) -> StoreError | None:
        """Return what the rounds are refused with; None where gaps are allowed."""
        if self.settings.required:
            return StoreError(f"the audit cannot be written: {error}", retryable=error.retryable)
        self._lost += count
        self._trouble.error(f"the audit has a gap, because it cannot be written: {error}")
        return None

    async def _purge(self, store: AuditStore) -> None:
        """Remove records whose time is over."""
        now = self.clock()
        event = AuditEvent(
            kind="checkpoint", at=now, server=self.server, process=self.process, reason="retention"
        )
        before = now - self.settings.keep.total_seconds()
        try:
            while await store.purge_audit(event, before=before, most=self.settings.most):
                pass
        except StoreError as error:
            self._trouble.error(f"old records of the audit cannot be removed: {error}")


async def _at_once(
    append: Callable[[Sequence[AuditEvent]], None], events: Sequence[AuditEvent]
) -> None:
    append(events)


def _client(claimed: Mapping[str, Any] | None) -> str:
    """Return the name and version that a client claims, bounded."""
    if not claimed:
        return ""
    return f"{claimed.get('name', '')} {claimed.get('version', '')}".strip()[:200]
