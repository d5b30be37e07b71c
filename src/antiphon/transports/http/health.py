"""`GET /healthz` and `GET /readyz`, for whoever runs the process. They reveal nothing else.

`/healthz` answers while the process serves at all. `/readyz` answers 200 while requests can be
served, which includes that the store answers in time, and 503 otherwise. Neither needs an allowed
Host: a probe calls the process by its address. However often they are called, the store is asked
by one probe at a time, and its answer counts for a moment.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from antiphon.transports.http.access import HttpRefusal

HEALTH, READY = "/healthz", "/readyz"
PATHS = frozenset({HEALTH, READY})

PROBE_SECONDS = 2.0
"""How long the store may take to answer."""

KEPT_SECONDS = 1.0
"""How long an answer of the store counts."""

OK = HttpRefusal(200, "ok")
_READY = HttpRefusal(200, "ready")
NOT_READY = HttpRefusal(503, "not ready")
NOT_A_GET = HttpRefusal(405, "Use GET.", ((b"allow", b"GET, HEAD"),))

_log = logging.getLogger("antiphon.http")


class Readiness:
    """Whether the store answers."""

    def __init__(self, probe: Callable[[], Awaitable[object]]) -> None:
        """Take what asks the store something."""
        self._probe = probe
        self._asking: asyncio.Task[bool] | None = None
        self._asked_at = 0.0

    async def check(self) -> HttpRefusal:
        """Return the answer to `/readyz`."""
        loop = asyncio.get_running_loop()
        asking = self._asking
        stale = loop.time() - self._asked_at > KEPT_SECONDS
        if asking is None or (asking.done() and stale) or asking.get_loop() is not loop:
            self._asked_at = loop.time()
            asking = self._asking = asyncio.create_task(self._ask(), name="antiphon readiness")
        return _READY if await asyncio.shield(asking) else NOT_READY

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._probe()
        except Exception as error:  # noqa: BLE001 - whatever it is, the server is not ready
            cause = (
                f"no answer in {PROBE_SECONDS:g} s" if isinstance(error, TimeoutError) else error
            )
            _log.warning("not ready: the store does not answer: %s", cause)
            return False
        return True
