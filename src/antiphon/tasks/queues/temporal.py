"""Task runs carried by Temporal: each is a standalone activity, without a workflow.

A call starts an activity, at once or after a delay; a caller's tasks share a fairness key, so that
callers take turns. While a run goes on its worker sends heartbeats; without them Temporal has
another worker try again. The same call is kept once for as long as its activity is open. An
activity that is cancelled in Temporal cuts its run short, and the task is run again: to end a task,
cancel the task.
"""

import asyncio
import ctypes
from datetime import timedelta
from logging import Logger, getLogger
from typing import Any

import msgspec
from temporalio import activity
from temporalio.client import Client
from temporalio.common import ActivityIDConflictPolicy, Priority, RetryPolicy
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.service import TLSConfig
from temporalio.worker import Worker

from antiphon.ports import Due, RunTask

log: Logger = getLogger("antiphon")

_ACTIVITY = "antiphon-task-run"
_LONGEST = timedelta(days=30)
"""Time for one run, which must have some bound; a dead worker is found by its heartbeats."""

_UNWIND = timedelta(seconds=30)
"""Time that runs have when the worker stops. The worker itself cuts them off before."""

_AGAIN = RetryPolicy(
    initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=5)
)


class TemporalCarrier:
    """Calls tasks as standalone activities of Temporal."""

    def __init__(
        self,
        address: str,
        server: str,
        *,
        namespace: str = "default",
        heartbeat: float = 10.0,
        tls: bool | TLSConfig = False,
        api_key: str | None = None,
    ) -> None:
        """Name the server; `open` connects.

        Args:
            address: Host and port of Temporal's frontend.
            server: Whose tasks are called; workers of other servers have task queues of their own.
            namespace: Of Temporal.
            heartbeat: Seconds after which a worker of which nothing was heard is taken for dead.
            tls: True, or certificates, where Temporal is reached by TLS.
            api_key: Sent with every request.
        """
        self._address = address
        self._tls = tls
        self._api_key = api_key
        self._namespace = namespace
        self._heartbeat = heartbeat
        self._queue = f"antiphon-{server}"
        self._client: Client | None = None
        self._runtime: Runtime | None = None

    async def open(self) -> None:
        """Connect."""
        if self._runtime is None:
            # Unless told otherwise it logs to standard output, where other things are said.
            forward = LogForwardingConfig(log)
            logging = LoggingConfig(filter=TelemetryFilter("WARN", "ERROR"), forwarding=forward)
            self._runtime = Runtime(telemetry=TelemetryConfig(logging=logging))
            # Freeing it waits for its threads, and these may wait for the interpreter that frees
            # it: a process would never end. It stays until the process is gone.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._runtime))
        self._client = await Client.connect(
            self._address,
            namespace=self._namespace,
            runtime=self._runtime,
            tls=self._tls,
            api_key=self._api_key,
        )

    async def close(self) -> None:
        """Let go of the connection, which ends with its last user."""
        self._client = None

    async def call(self, due: Due) -> None:
        """Start an activity; the same one again is left as it is."""
        await self._start(due, f"{due.task}-{due.epoch}-{due.revision}-{due.after > 0:d}")

    async def _start(self, due: Due, name: str) -> None:
        payload = msgspec.to_builtins(msgspec.structs.replace(due, after=0.0))
        await self._connected().start_activity(
            _ACTIVITY,
            payload,
            id=f"antiphon-{name}",
            task_queue=self._queue,
            start_to_close_timeout=_LONGEST,
            heartbeat_timeout=timedelta(seconds=self._heartbeat),
            id_conflict_policy=ActivityIDConflictPolicy.USE_EXISTING,
            retry_policy=_AGAIN,
            priority=Priority(fairness_key=due.caller),
            start_delay=timedelta(seconds=due.after) if due.after > 0 else None,
        )

    def _connected(self) -> Client:
        if self._client is None:
            raise ConnectionError("the Temporal carrier is not open. Await its open() first.")
        return self._client

    async def carry(self, run: RunTask) -> None:
        """Run what is called until the worker ends."""

        @activity.defn(name=_ACTIVITY)
        async def run_task(payload: dict[str, Any]) -> None:
            running = asyncio.ensure_future(self._run_task(payload, run))
            while True:
                try:
                    return await asyncio.shield(running)
                except asyncio.CancelledError:
                    if not running.done() and _is_forgotten():
                        continue
                    running.cancel()
                    await asyncio.wait({running})
                    raise

        worker = Worker(
            self._connected(),
            task_queue=self._queue,
            activities=[run_task],
            max_concurrent_activities=run.places,
            graceful_shutdown_timeout=_UNWIND,
        )
        working = asyncio.ensure_future(worker.run())
        stopping = asyncio.ensure_future(run.stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await worker.shutdown()
            await working
        finally:
            stopping.cancel()
            working.cancel()
            await asyncio.gather(stopping, working, return_exceptions=True)

    async def _run_task(self, payload: dict[str, Any], run: RunTask) -> None:
        beats = asyncio.create_task(self._beat())
        try:
            due = msgspec.convert(payload, Due)
            again = await run(due, seize=activity.info().attempt - 1)
        finally:
            beats.cancel()
        if again is not None:
            await self._start(again, next_name(again, activity.info().activity_id))

    async def _beat(self) -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(self._heartbeat / 4)


def next_name(due: Due, now: str) -> str:
    """Name the activity that follows this one, which was too early or found no place.

    There are two names, used in turn: this one is still open, and a call that was made several
    times does not go round several times.
    """
    name = f"{due.task}-{due.epoch}-{due.revision}-again"
    return f"{name}-{2 if now == f'antiphon-{name}-1' else 1}"


def _is_forgotten() -> bool:
    """Return whether Temporal has only lost sight of this attempt: it was away, or heard nothing.

    The task's row knows better who lives. A run that was taken over is cut by its lease.
    """
    why = activity.cancellation_details()
    return why is not None and (why.not_found or why.timed_out) and not why.cancel_requested
