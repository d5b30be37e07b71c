"""A carrier of one's own: Restate. `carry` needs its SDK (`pip install restate-sdk hypercorn`)."""

from datetime import timedelta
from typing import Any

import httpx2
import msgspec

from antiphon.ports import Due, RunTask


class RestateCarrier:
    """Calls tasks through Restate: one virtual object for each task, one run at a time."""

    def __init__(self, ingress: str, listen_on: str = "127.0.0.1:9080") -> None:
        self._ingress = ingress
        self._listen_on = listen_on
        self._http: httpx2.AsyncClient | None = None

    async def open(self) -> None:
        self._http = httpx2.AsyncClient(base_url=self._ingress, timeout=2.0)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def call(self, due: Due) -> None:
        assert self._http is not None
        delay = f"?delay={round(due.after * 1000)}ms" if due.after > 0 else ""
        response = await self._http.post(
            f"/AntiphonRuns/{due.task}/run/send{delay}",
            content=msgspec.json.encode(msgspec.structs.replace(due, after=0.0)),
            headers={"content-type": "application/json"},
        )
        response.raise_for_status()

    async def carry(self, run: RunTask) -> None:
        import hypercorn.asyncio
        import hypercorn.config
        import restate

        runs = restate.VirtualObject(
            "AntiphonRuns",
            inactivity_timeout=timedelta(days=30),  # a run may think for long without a word
            journal_retention=timedelta(0),
            invocation_retry_policy=restate.InvocationRetryPolicy(
                initial_interval=timedelta(milliseconds=100), max_interval=timedelta(seconds=5)
            ),
        )

        @runs.handler("run")
        async def run_task(ctx: restate.ObjectContext, payload: dict[str, Any]) -> None:
            # Only one invocation of an object runs: an earlier attempt is over, or cut off.
            again = await run(msgspec.convert(payload, Due), seize=1)
            if again is not None:
                await self.call(again)

        config = hypercorn.config.Config()
        config.bind = [self._listen_on]
        config.graceful_timeout = 30.0  # for runs at the end of the worker
        app: Any = restate.app([runs])
        await hypercorn.asyncio.serve(app, config, shutdown_trigger=run.stopping.wait)
