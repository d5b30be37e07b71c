"""Sends the notices that the store keeps: at least once, with an id that stays the same."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from antiphon.console import Console, Webhook
from antiphon.engine.environment import Environment
from antiphon.errors import StoreError, TokenRefused
from antiphon.outbound.http_client import HttpClient
from antiphon.ports import Inbox, Notification
from antiphon.protocol.failures import OccasionalLog
from antiphon.protocol.inbox import Item, decode_face

log: logging.Logger = logging.getLogger("antiphon")

EVERY = 1.0
LEASE = 30.0
AT_ONCE = 20
TRIES = 12
"""After so many failures, over about a day, a notice is dropped and that is logged."""

TIMEOUT = 10.0
_DELAYS = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 7200.0)

Post = Callable[[str, bytes, dict[str, str]], Awaitable[int]]
"""Sends a body; returns the status."""


class NoticeSender:
    """Sends what is due, until it is stopped."""

    def __init__(
        self, environment: Environment, store: Inbox, console: Console, post: Post
    ) -> None:
        self._environment = environment
        self._store = store
        self._console = console
        self._post = post
        self._targets = {target.name: target for target in console.notify}
        self._server = environment.sealer.audience
        self._trouble = OccasionalLog(log, time.monotonic)

    async def run(self) -> None:
        """Send what is due, again and again."""
        while True:
            try:
                sent = await self.send_due()
            except StoreError:
                sent = 0  # the store says by itself what is wrong
            if sent < AT_ONCE:
                await asyncio.sleep(EVERY)

    async def send_due(self) -> int:
        """Send what is due now; returns how many were tried."""
        due = await self._store.due_notices(self._server, limit=AT_ONCE, lease=LEASE)
        await asyncio.gather(*(self._send(one) for one in due))
        return len(due)

    async def _send(self, notice: Notification) -> None:
        target = self._targets.get(notice.target)
        item = await self._store.item(notice.item)
        if target is None or item is None:
            log.warning("notice %s dropped: its target or item is gone", notice.id)
            return await self._store.sent_notice(notice.id)
        if await self._delivered(target, notice, item):
            return await self._store.sent_notice(notice.id)
        if notice.tries + 1 >= TRIES:
            log.error("notice %s to %s given up after %d tries", notice.id, target.name, TRIES)
            return await self._store.sent_notice(notice.id)
        delay = _DELAYS[min(notice.tries, len(_DELAYS) - 1)]
        return await self._store.sent_notice(notice.id, again=delay)

    async def _delivered(self, target: Webhook, notice: Notification, item: Item) -> bool:
        try:
            body = msgspec.json.encode(await self._payload(notice, item))
            headers = target.signed_headers(notice.id, body, self._environment.clock())
            async with asyncio.timeout(TIMEOUT):
                status = await self._post(target.url, body, headers)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            self._trouble.warning(f"notices to {target.name} failed: {type(error).__name__}")
            return False
        if not 200 <= status < 300:
            self._trouble.warning(f"notices to {target.name} failed: status {status}")
        return 200 <= status < 300

    async def _payload(self, notice: Notification, item: Item) -> dict[str, Any]:
        data: dict[str, Any] = {
            "item": item.id,
            "server": item.server,
            "tool": item.tool,
            "role": item.role,
            "status": item.status,
            "expires": item.expires,
            "url": f"{self._console.place.url}/ask/{item.id}",
        }
        if self._console.notice_details:
            try:
                face = decode_face(await self._environment.reveal(item.face, f"item {item.id}"))
            except TokenRefused:
                log.error("inbox item %s cannot be opened: is a key missing?", item.id)
            else:
                data["message"] = face.message
                data["details"] = [list(pair) for pair in face.details]
        at = datetime.fromtimestamp(_happened(notice, item), UTC).isoformat()
        return {"type": f"approval.{notice.kind}", "timestamp": at, "data": data}


def _happened(notice: Notification, item: Item) -> float:
    """Return when that happened which a notice is about."""
    if notice.kind == "reminded":
        return (item.created + item.expires) / 2
    return item.created if notice.kind == "asked" or item.closed is None else item.closed


@asynccontextmanager
async def sending(environment: Environment, store: Inbox, console: Console) -> AsyncGenerator[None]:
    """Send notices for as long as this is open; what is left stays in the store."""
    async with HttpClient(seconds=TIMEOUT) as client:

        async def post(url: str, body: bytes, headers: dict[str, str]) -> int:
            async with client.stream("POST", url, content=body, headers=headers) as answer:
                return answer.status_code

        sender = asyncio.create_task(
            NoticeSender(environment, store, console, post).run(), name="antiphon notices"
        )
        try:
            yield
        finally:
            sender.cancel()
            await asyncio.wait({sender})
